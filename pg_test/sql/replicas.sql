--
-- REPLICAS: their definitions, the options' validation, and check_cluster
--
\set code '\\echo SQLSTATE :LAST_ERROR_SQLSTATE'
\set SHOW_CONTEXT never
CREATE VIEW defined AS
SELECT s.srvname, srvoptions, umoptions, usename
  FROM pg_foreign_server s
  JOIN pg_foreign_data_wrapper w ON w.oid = srvfdw AND fdwname = 'parallel_replicas'
  LEFT JOIN pg_user_mappings m ON m.srvid = s.oid
 WHERE s.srvname NOT LIKE 'standby%'
 ORDER BY 1;

-- add_replica
SELECT parallel_replicas.add_replica('a', 'alpha.example', 5433, 'other');
SELECT parallel_replicas.add_replica('plain', 'localhost', 5432);
SELECT srvoptions FROM defined WHERE srvname = 'plain';
SELECT parallel_replicas.remove_replica('plain');
SELECT parallel_replicas.add_replica('b', 'beta.example', 5434, 'other');
SELECT parallel_replicas.add_replica('c', '::1', 5435, cluster => 'reports', username => 'lu', password => 'p''w');
SELECT parallel_replicas.add_replica('Not "plain"', 'x', 1, 'it''s');
SELECT srvname, srvoptions, umoptions, usename = current_user AS mine FROM defined;
SELECT parallel_replicas.add_replica('a', 'again', 1);
:code
SELECT parallel_replicas.add_replica('d', 'delta', 0);
:code
SELECT parallel_replicas.add_replica('d', 'delta', 65536);
SELECT parallel_replicas.add_replica('d', '', 5432);
SELECT parallel_replicas.add_replica('d', 'one,two', 5432);
SELECT parallel_replicas.add_replica('d', 'delta', 5432, '');
SELECT parallel_replicas.add_replica('d', 'delta', 5432, repeat('x', 64));
SELECT parallel_replicas.add_replica(NULL, 'delta', 5432);
:code
SELECT parallel_replicas.add_replica('d', NULL, 5432);
SELECT parallel_replicas.add_replica('d', 'delta', NULL);
SELECT parallel_replicas.add_replica('d', 'delta', 5432, NULL);
SELECT parallel_replicas.add_replica('', 'delta', 5432);
-- Nothing is left of what failed.
SELECT srvname FROM defined;

-- remove_replica
SELECT parallel_replicas.remove_replica('Not "plain"');
SELECT parallel_replicas.remove_replica('c');
SELECT parallel_replicas.remove_replica('nobody');
:code
SELECT parallel_replicas.remove_replica(NULL) IS NULL AS nothing;
CREATE FOREIGN DATA WRAPPER other;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER other;
SELECT parallel_replicas.remove_replica('elsewhere');
DROP FOREIGN DATA WRAPPER other CASCADE;
SELECT srvname FROM defined;

-- Options of servers.
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas;
:code
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (port '5432');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (hostaddr '127.0.0.1,127.0.0.2');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', port 'x');
:code
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', port '+5432');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', port '5432,5433');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', port '');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', port '99999999999999999999');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', weight '0');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', weight '1001');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', priority '-1');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', priority '1.5');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host 'h', cluster '');
-- The list of valid options in the hints depends on libpq's version.
CREATE FUNCTION try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    code text; message text; detail text; hint text;
BEGIN
    EXECUTE command;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(' | ', code, message, nullif(detail, ''),
        nullif(regexp_replace(hint, 'options here are: .*', 'options here are: ...'), ''));
END$$;
SELECT option, try(format('CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host %L, %I %L)', 'h', option, 'x'))
  FROM unnest('{user,password,sslpassword,password_required,dbname,options,service,application_name,
                fallback_application_name,client_encoding,target_session_attrs,replication,
                prot,hots,clutser,Host,nonsense,""}'::text[]) option
 WHERE option <> '';
SELECT try('CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host ''h'', host ''i'')');
CREATE SERVER d FOREIGN DATA WRAPPER parallel_replicas
    OPTIONS (host 'h', port '65535', cluster 'c', weight '1000', priority '0',
             connect_timeout '3', sslmode 'require', keepalives_idle '60');
ALTER SERVER d OPTIONS (SET weight '5', DROP priority);
ALTER SERVER d OPTIONS (DROP host);
ALTER SERVER d OPTIONS (ADD hostaddr '127.0.0.1', DROP host);
SELECT srvoptions FROM defined WHERE srvname = 'd';

-- Options of user mappings.
SELECT option, try(format('CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (%I %L)', option, 'secret'))
  FROM unnest('{host,port,cluster,pasword,dbname,password_required}'::text[]) option;
CREATE USER MAPPING FOR CURRENT_USER SERVER d
    OPTIONS (user 'lu', password 'secret', password_required 'false', sslcert '/c', sslkey '/k', sslpassword 'p');
ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (SET password_required 'OFF', DROP sslcert, DROP sslkey);
SELECT umoptions FROM defined WHERE srvname = 'd';
DROP USER MAPPING FOR CURRENT_USER SERVER d;
-- What a user who is no superuser may not say.
CREATE ROLE regress_mapper;
GRANT USAGE ON FOREIGN SERVER d TO regress_mapper;
SET ROLE regress_mapper;
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (password_required 'false');
:code
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (sslcert '/etc/passwd');
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (sslkey '/etc/passwd');
CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'u', password 'p', password_required 'true');
RESET ROLE;

-- Neither the wrapper nor foreign tables take options, and there is nothing to read.
SELECT try('ALTER FOREIGN DATA WRAPPER parallel_replicas OPTIONS (host ''h'')');
SELECT try('CREATE FOREIGN TABLE ft (i integer) SERVER d OPTIONS (host ''h'')');
CREATE FOREIGN TABLE ft (i integer) SERVER d;
SELECT * FROM ft;
DROP FOREIGN TABLE ft;
DROP SERVER d CASCADE;
DROP ROLE regress_mapper;

-- check_cluster: the real one, then replicas that nobody can reach.
SELECT replica, check_name, ok, hint FROM parallel_replicas.check_cluster();
SELECT bool_and(ok) AS fine FROM parallel_replicas.check_cluster('default');
SELECT parallel_replicas.add_replica('nobody', '127.0.0.1', 1, 'reports');
SELECT replica, check_name, ok, hint,
       CASE WHEN detail LIKE 'could not connect%' THEN 'could not connect ...' ELSE detail END AS detail
  FROM parallel_replicas.check_cluster('reports');
SELECT * FROM parallel_replicas.check_cluster('no such cluster');
:code
SELECT * FROM parallel_replicas.check_cluster(NULL);
-- A replica that is this server itself is named as such.
SELECT inet_server_port() AS port \gset
SELECT parallel_replicas.add_replica('self', '127.0.0.1', :port, 'itself');
SELECT check_name, ok, detail FROM parallel_replicas.check_cluster('itself')
 WHERE check_name IN ('in recovery', 'replay', 'preloaded');
SELECT parallel_replicas.remove_replica(srvname) FROM defined;
DROP VIEW defined;
DROP FUNCTION try;
