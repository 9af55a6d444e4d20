-- Queries of the differential-test corpus; README.md in this directory describes the format.

-- ===========================================================================
-- Plain scans: filters and projections
-- ===========================================================================

-- name: scan_filter_int_eq
SELECT id, cust_id, qty FROM fact WHERE cust_id = 77;

-- name: scan_filter_range_and
SELECT id, prod_id, amount FROM fact WHERE prod_id BETWEEN 100 AND 140 AND amount > 500.25 AND ok;

-- name: scan_filter_or
SELECT id, status, flags FROM fact WHERE (flags < 200 AND status = 'void') OR (flags > 65300 AND status IS NULL);

-- name: scan_filter_is_null
SELECT id, big, tl FROM fact WHERE amount IS NULL AND price IS NULL;

-- name: scan_filter_is_not_null
SELECT count(*), count(amount), count(price), count(note), count(u) FROM fact WHERE cust_id IS NOT NULL AND d IS NOT NULL;

-- name: scan_filter_bool_tests
SELECT count(*) FILTER (WHERE ok IS TRUE), count(*) FILTER (WHERE ok IS NOT TRUE), count(*) FILTER (WHERE ok IS FALSE),
       count(*) FILTER (WHERE ok IS NOT FALSE), count(*) FILTER (WHERE ok IS UNKNOWN), count(*) FILTER (WHERE NOT ok) FROM fact;

-- name: scan_filter_in_list
SELECT id, code, qty FROM fact WHERE code IN ('AAx', 'BCx', 'ZB', 'QQ') AND qty IN (1, 2, 3, 5, 8, 13, 21, 34);

-- name: scan_filter_long_in_list
SELECT id, prod_id FROM fact WHERE flags % 100 = 3 AND prod_id IN (21,23,25,27,29,31,33,35,37,39,41,43,45,47,49,51,53,55,57,59,61,63,65,67,69,71,73,75,77,79,81,83,85,87,89,91,93,95,97,99,101,103,105);

-- name: scan_filter_not_in_list_null
SELECT count(*) FROM fact WHERE cust_id NOT IN (1, 2, 3, NULL);

-- name: scan_filter_any_array
SELECT count(*), min(id), max(id) FROM fact WHERE store_id = ANY ('{3,7,11,58,999}'::smallint[]);

-- name: scan_filter_all_array
SELECT count(*), sum(id) FROM fact WHERE qty > ALL ('{10,20,90}'::int[]);

-- name: scan_filter_numeric
SELECT id, amount, amount * 1.19 AS gross FROM fact WHERE amount >= 9480.00;

-- name: scan_filter_float
SELECT id, price, price / 3 FROM fact WHERE price > 2695.5 OR price < 0.2;

-- name: scan_filter_date
SELECT id, d FROM fact WHERE d = DATE '2022-07-04';

-- name: scan_filter_date_interval
SELECT id, d, tl FROM fact WHERE d >= DATE '2021-12-31' - INTERVAL '2 days' AND d < DATE '2022-01-02' AND flags % 3 = 0;

-- name: scan_filter_timestamptz
SELECT count(*), min(ts), max(ts) FROM fact WHERE ts >= '2021-05-01 00:00:00+02' AND ts < TIMESTAMPTZ '2021-06-01 12:00:00-07';

-- name: scan_filter_uuid
SELECT id, u FROM fact WHERE u = md5('4242')::uuid OR u < '00050000-0000-0000-0000-000000000000';

-- name: scan_filter_bpchar
SELECT count(*), min(id) FROM fact WHERE code = 'CB' OR code = 'CB '::char(5);

-- name: scan_filter_bitmask
SELECT id, flags FROM fact WHERE flags & 4095 = 4095;

-- name: scan_filter_like
SELECT id, note FROM fact WHERE note LIKE 'n12%7';

-- name: scan_filter_like_escape
SELECT count(*), min(id) FROM fact WHERE note LIKE '100\%\_%' AND note NOT LIKE '%x%';

-- name: scan_filter_ilike
SELECT count(*), max(id) FROM fact WHERE note ILIKE 'NAÏVE%3';

-- name: scan_filter_regex
SELECT id, note FROM fact WHERE note ~ '^n4?9{2}[0-5]$';

-- name: scan_filter_regex_ci
SELECT count(*), count(DISTINCT note) FROM fact WHERE note ~* '^(AB){2,4}$' OR note !~ '[a-z]';

-- name: scan_filter_similar_to
SELECT count(*) FROM fact WHERE note SIMILAR TO 'n(1|2)[0-9]{2}';

-- name: scan_filter_starts_with
SELECT count(*), sum(id) FROM fact WHERE starts_with(note, 'n33') OR note ^@ 'tab';

-- name: scan_filter_empty_vs_null
SELECT count(*) FILTER (WHERE note = ''), count(*) FILTER (WHERE note IS NULL), count(*) FILTER (WHERE note <> ''), count(nullif(note, '')) FROM fact;

-- name: scan_filter_is_distinct
SELECT count(*) FILTER (WHERE status IS DISTINCT FROM 'paid'), count(*) FILTER (WHERE status IS NOT DISTINCT FROM NULL),
       count(*) FILTER (WHERE qty IS DISTINCT FROM store_id) FROM fact;

-- name: scan_filter_row_compare
SELECT id, store_id, qty FROM fact WHERE (store_id, qty, id) > (57, 90, 1000) AND (store_id, qty) <= (58, 3);

-- name: scan_filter_row_in
SELECT id, store_id, qty FROM fact WHERE (store_id, qty) IN ((1, 1), (2, 2), (30, 94), (58, NULL));

-- name: scan_filter_row_is_null
SELECT count(*) FILTER (WHERE (amount, price) IS NULL), count(*) FILTER (WHERE (amount, price) IS NOT NULL), count(*) FILTER (WHERE NOT (amount, price) IS NULL) FROM fact;

-- name: scan_filter_const_false
SELECT id, note FROM fact WHERE 1 = 2 AND id > 5;

-- name: scan_filter_none_match
SELECT id, note FROM fact WHERE flags < 0;

-- name: scan_filter_case
SELECT id, CASE WHEN qty < 0 THEN 'neg' WHEN qty > 90 THEN 'big' WHEN qty IS NULL THEN 'null' ELSE 'mid' END AS cls
FROM fact WHERE CASE status WHEN 'void' THEN flags < 900 WHEN 'new' THEN flags > 64900 ELSE false END;

-- name: scan_filter_overflow_guard
SELECT count(*) FROM fact WHERE CASE WHEN qty <> 0 THEN 1000 / qty > 50 ELSE false END;

-- name: scan_project_coalesce
SELECT id, coalesce(amount, price::numeric(12,2), 0), coalesce(note, status, 'none'), nullif(status, 'paid'), greatest(qty, store_id, 3), least(qty, NULL, store_id) FROM fact WHERE flags < 400;

-- name: scan_project_arith
SELECT id, qty * 3 - store_id, big % 1000, -qty, abs(qty), qty / 7, qty % 7, big >> 50, flags # 255, flags | 1, ~flags, @ qty FROM fact WHERE flags BETWEEN 1000 AND 1300;

-- name: scan_project_numeric_funcs
SELECT id, round(amount, 1), trunc(amount), ceil(amount), floor(amount), sign(amount), mod(amount, 7), div(amount, 3), width_bucket(amount, 0, 10000, 20), scale(amount) FROM fact WHERE flags BETWEEN 2000 AND 2300;

-- name: scan_project_float_funcs
SELECT id, sqrt(price), ln(price), exp(price / 1000), power(price, 1.5), sin(price), atan2(price, 3), cbrt(price), degrees(price), round(price) FROM fact WHERE flags BETWEEN 3000 AND 3300 AND price > 0;

-- name: scan_project_string_funcs
SELECT id, upper(note), lower(status), length(note), octet_length(note), left(note, 3), right(note, 2), reverse(note), initcap(status), lpad(status, 10, '*'), repeat(code, 2), replace(note, 'n', 'NN'), position('a' in note), substring(note from 2 for 3), translate(note, 'abn', 'xyz'), md5(note), concat(status, '-', qty, NULL), concat_ws('/', status, qty, note), status || code FROM fact WHERE flags BETWEEN 4000 AND 4300;

-- name: scan_project_string_funcs2
SELECT id, trim(both 'n' from note), btrim(note, 'ab'), rtrim(code), ascii(note), split_part(note, ' ', 2), strpos(note, 'e'), overlay(status placing 'ZZ' from 2 for 1), quote_literal(note), quote_ident(note), format('%s|%I|%L', id, status, note), to_hex(flags), encode(convert_to(note, 'UTF8'), 'base64') FROM fact WHERE flags BETWEEN 5000 AND 5200 AND status IS NOT NULL;

-- name: scan_project_regexp
SELECT id, regexp_replace(note, '([0-9])([0-9])', '\2\1', 'g'), substring(note from '[0-9]+'), regexp_match(note, '([a-z])([0-9]*)'), regexp_split_to_array(note, '[0-9]'), regexp_count(note, '[0-9]') FROM fact WHERE flags BETWEEN 6000 AND 6200;

-- name: scan_project_casts
SELECT id, qty::text, amount::int, price::numeric(10,3), amount::text, d::text, ok::int, ok::text, flags::bit(16), id::varchar(2), big::text::numeric, u::text, '0x' || flags, code::text, status::char(2), tl::date, tl::time, d::timestamp FROM fact WHERE flags BETWEEN 7000 AND 7300;

-- name: scan_project_whole_row
SELECT f FROM fact f WHERE flags BETWEEN 8000 AND 8050;

-- name: scan_project_row_to_json
SELECT row_to_json(f), to_jsonb(f) -> 'amount' FROM (SELECT id, amount, status, d, ok, note FROM fact) f WHERE id % 3001 = 7;

-- name: scan_project_star
SELECT * FROM fact WHERE flags BETWEEN 9000 AND 9040;

-- name: scan_project_constants
SELECT 1 AS one, 'x'::text AS x, NULL::int AS n, id FROM fact WHERE flags < 60;

-- name: scan_no_columns
SELECT FROM fact WHERE flags < 300;

-- name: scan_dup_columns
SELECT id, id, note, note, id + 0 FROM fact WHERE flags < 100;

-- name: scan_array_constructor
SELECT id, ARRAY[id, qty, store_id], ARRAY[status, note], ROW(id, status), ARRAY[ARRAY[qty, 1], ARRAY[2, store_id]] FROM fact WHERE flags BETWEEN 10000 AND 10100;

-- name: scan_wide_all
SELECT * FROM t_wide WHERE id % 10 = 3;

-- name: scan_wide_last_columns
SELECT id, c200, c1, c199, c77 FROM t_wide WHERE c198 > 300 OR c6 IS NULL;

-- name: scan_wide_agg
SELECT count(c200), sum(c198), avg(c194), min(c199), max(c190), bool_or(c197), count(DISTINCT c193), sum(c6), sum(c3) FROM (SELECT c200, c198, c194, c197, c199, c190, c193, c6, c3 FROM t_wide) s;

-- name: scan_wide_whole_row
SELECT count(w), count(*) FILTER (WHERE w IS NOT NULL), count(*) FILTER (WHERE w IS NULL), sum(length(w::text)) FROM t_wide w;

-- name: scan_user_functions
SELECT id, f_sql_inline(qty, 1), f_plpgsql_safe(id), f_with_set(ts) FROM fact WHERE flags < 150;

-- name: scan_user_function_filter
SELECT count(*), sum(id) FROM fact WHERE f_plpgsql_safe(flags) < 500;

-- name: scan_user_function_restricted
SELECT id, f_plpgsql_restricted(flags) FROM fact WHERE flags < 150;

-- name: scan_user_function_restricted_filter
SELECT count(*) FROM customer WHERE f_plpgsql_restricted(cust_id) = 3;

-- name: scan_user_function_unsafe
SELECT count(*), sum(f_plpgsql_unsafe(cust_id)) FROM customer;

-- name: scan_user_function_lookup
SELECT store_id, f_lookup(region_id) FROM store;

-- name: scan_user_function_lookup_filter
SELECT count(*) FROM customer WHERE f_lookup(region_id) = 'East';

-- ===========================================================================
-- System columns and physical oddities
-- ===========================================================================

-- name: sys_ctid_projection
SELECT ctid, id FROM fact WHERE flags < 100;

-- name: sys_ctid_filter
SELECT ctid, id, note FROM fact WHERE ctid IN ('(0,1)', '(10,5)', '(100,3)', '(999999,1)');

-- name: sys_ctid_range
SELECT count(*), min(id), max(id) FROM fact WHERE ctid >= '(100,0)' AND ctid < '(200,0)';

-- name: sys_ctid_min_max
SELECT min(ctid), max(ctid), count(DISTINCT ctid) FROM t_dead;

-- name: sys_tableoid
SELECT tableoid::regclass, count(*), sum(id) FROM ev GROUP BY tableoid;

-- name: sys_tableoid_inh
SELECT tableoid::regclass AS tab, id, t FROM inh WHERE id % 97 = 5;

-- name: sys_tableoid_filter
SELECT count(*), sum(val) FROM ev2 WHERE tableoid IN ('ev2_a_s'::regclass, 'ev2_b_1'::regclass);

-- name: sys_xmin
SELECT count(*), count(DISTINCT xmin::text), min(cmin::text::int) >= 0, count(DISTINCT xmax::text) FROM t_dead;

-- name: sys_blocks
SELECT (ctid::text::point)[0]::int / 50 AS blk, count(*), sum(v) FROM t_sparse GROUP BY 1;

-- name: odd_zero_columns_star
SELECT * FROM t0;

-- name: odd_zero_columns_count
SELECT count(*) FROM t0;

-- name: odd_zero_columns_const
SELECT 7 AS seven, ctid FROM t0 WHERE ctid > '(3,0)';

-- name: odd_zero_columns_dropped
SELECT count(*), count(t0_dropped), count(t0_dropped.ctid) FROM t0_dropped;

-- name: odd_zero_columns_whole_row
SELECT count(t0.*), count(*) FROM t0;

-- name: odd_zero_columns_join
SELECT count(*) FROM t0_dropped, t_block WHERE t_block.a < 20;

-- name: odd_empty_star
SELECT * FROM t_empty;

-- name: odd_empty_aggs
SELECT count(*), sum(a), avg(c), max(b), min(d), stddev(c), bool_and(a > 0), array_agg(a), string_agg(b, ',') FROM t_empty;

-- name: odd_empty_group
SELECT b, count(*) FROM t_empty GROUP BY b;

-- name: odd_empty_grouping_sets
SELECT b, count(*), sum(a) FROM t_empty GROUP BY GROUPING SETS ((b), ());

-- name: odd_empty_join
SELECT f.id, e.b FROM fact f LEFT JOIN t_empty e ON e.a = f.id WHERE f.flags < 50;

-- name: odd_empty_not_exists
SELECT count(*) FROM customer c WHERE NOT EXISTS (SELECT 1 FROM t_empty e WHERE e.a = c.cust_id);

-- name: odd_one_row
SELECT *, a + 1 AS a1 FROM t_one WHERE b = 'only';

-- name: odd_one_row_agg
SELECT count(*), sum(a), avg(c), stddev_samp(a), stddev_pop(a), var_samp(c), max(d) FROM t_one;

-- name: odd_one_row_cross
SELECT t_one.b, t_block.a FROM t_one CROSS JOIN t_block WHERE t_block.a > 90;

-- name: odd_one_block
SELECT b, count(*), sum(a) FROM t_block GROUP BY b ORDER BY b;

-- name: odd_all_null_aggs
SELECT count(*), count(a), sum(a), avg(c), max(b), min(d), sum(e), bool_or(f), stddev(e), corr(e, e), count(DISTINCT b) FROM t_null;

-- name: odd_all_null_group
SELECT a, b, c, d, e, f, count(*) FROM t_null GROUP BY 1, 2, 3, 4, 5, 6;

-- name: odd_all_null_filters
SELECT count(*) FILTER (WHERE a = a), count(*) FILTER (WHERE a IS NULL), count(*) FILTER (WHERE NOT (f)), count(*) FILTER (WHERE f IS NOT TRUE), count(*) FILTER (WHERE t IS NULL) FROM t_null t;

-- name: odd_all_null_join
SELECT count(*) FROM t_null a JOIN t_null b ON a.a = b.a;

-- name: odd_all_null_full_join
SELECT count(*) FROM t_null n FULL JOIN t_block b ON n.a = b.a;

-- name: odd_sparse
SELECT v, count(*), max(id) FROM t_sparse WHERE pad LIKE 'pp%' GROUP BY v;

-- name: odd_dead_rows
SELECT id, v, t, ctid FROM t_dead WHERE v > 5000 OR id BETWEEN 3990 AND 6010;

-- name: odd_dead_rows_agg
SELECT t, count(*), sum(v), min(id), max(id) FROM t_dead GROUP BY t;

-- name: odd_alter_star
SELECT * FROM t_alter WHERE id BETWEEN 7980 AND 8030;

-- name: odd_alter_agg
SELECT added_int, added_text, added_ts, count(*), sum(v), sum(added_null), count(added_arr) FROM t_alter GROUP BY 1, 2, 3;

-- name: odd_alter_filter
SELECT count(*), min(id) FROM t_alter WHERE added_text = 'fast default' AND added_int = 77 AND added_arr @> '{2}';

-- name: odd_alter_whole_row
SELECT t_alter FROM t_alter WHERE id IN (1, 2, 9999, 10000);

-- name: toast_fetch
SELECT id, ext, cmp, cmp2 FROM t_toast WHERE id % 20 = 1;

-- name: toast_lengths
SELECT id, length(ext), length(cmp), length(cmp2), length(bin), octet_length(js::text), length(small) FROM t_toast;

-- name: toast_substr_md5
SELECT id, md5(ext), md5(cmp), md5(cmp2), md5(bin), substr(ext, 1000, 40), substr(cmp, 3000, 30), small = repeat('s' || id % 3, 100) FROM t_toast;

-- name: toast_agg
SELECT id % 5 AS k, max(ext), min(cmp), max(cmp2), sum(length(bin)) FROM t_toast GROUP BY 1;

-- name: toast_group_by_long
SELECT cmp, count(*), min(id) FROM t_toast GROUP BY cmp;

-- name: toast_sort
-- order: yes
SELECT id, ext FROM t_toast WHERE ext LIKE '%abc%' ORDER BY ext DESC NULLS LAST, id LIMIT 30;

-- name: toast_json
SELECT id, js -> 'k' -> 'key7', js #>> '{k,key3}', jsonb_typeof(js -> 'k') FROM t_toast WHERE js -> 'k' ? 'key100';

-- name: toast_join
SELECT a.id, b.id, length(a.ext || b.cmp2) FROM t_toast a JOIN t_toast b ON b.id = a.id * 2 AND md5(a.bin) > md5(b.bin);

-- name: toast_whole_row
SELECT md5(t::text), id FROM t_toast t WHERE id < 40;

-- name: toast_distinct
SELECT DISTINCT js FROM t_toast WHERE id < 30;

-- name: gen_columns
SELECT * FROM t_gen WHERE a2 > 550 AND up LIKE 'WORD1%';

-- name: gen_columns_group
SELECT up, count(*), sum(a2), sum(ab), avg(ab) FROM t_gen GROUP BY up HAVING sum(a2) > 1000;

-- ===========================================================================
-- Aggregates
-- ===========================================================================

-- name: agg_count_star
SELECT count(*) FROM fact;

-- name: agg_count_filtered
SELECT count(*) FROM fact WHERE status = 'paid' AND ok AND qty > 50;

-- name: agg_basic_ints
SELECT count(qty), sum(qty), avg(qty), min(qty), max(qty), sum(id), avg(id), sum(big), avg(big), min(big), max(big) FROM fact;

-- name: agg_basic_numeric
SELECT count(amount), sum(amount), avg(amount), min(amount), max(amount), sum(amount * qty), avg(amount / 3) FROM fact;

-- name: agg_basic_float
SELECT sum(price), avg(price), min(price), max(price), avg(rate), min(rate), max(rate), sum(price * 2 + 1) FROM fact;

-- name: agg_float4_exact_sum
SELECT sum(rate) FROM (SELECT rate FROM fact WHERE flags < 3000) s;

-- name: agg_min_max_types
SELECT min(d), max(d), min(ts), max(ts), min(tl), max(tl), min(code), max(code), min(status), max(status), min(note), max(note) FROM fact;

-- name: agg_min_max_types2
SELECT min(ip), max(ip), min(m), max(m), min(tm), max(tm), min(lsn), max(lsn), min(o), max(o), min(cash), max(cash) FROM t_misc;

-- name: agg_min_max_arrays
SELECT min(ia), max(ia), min(ta), max(ta) FROM t_arr;

-- name: agg_stddev_int
SELECT stddev(qty), stddev_pop(qty), variance(id), var_pop(big), stddev_samp(store_id), var_samp(flags) FROM fact;

-- name: agg_stddev_numeric
SELECT stddev(amount), stddev_pop(amount), variance(amount), var_pop(amount) FROM fact;

-- name: agg_stddev_float
SELECT stddev(price), stddev_pop(price), variance(price), var_pop(price), stddev(rate), var_samp(rate) FROM fact;

-- name: agg_regression
SELECT corr(price, qty), covar_pop(price, qty), covar_samp(price, qty), regr_avgx(price, qty), regr_avgy(price, qty), regr_count(price, qty), regr_sxx(price, qty), regr_syy(price, qty) FROM fact;

-- name: agg_regression_group
SELECT store_id, regr_slope(price + 10 * qty, qty), regr_intercept(price + 10 * qty, qty), regr_r2(price + 10 * qty, qty), regr_sxy(price + 10 * qty, qty), corr(price + 10 * qty, qty) FROM fact GROUP BY store_id;

-- name: agg_bool
SELECT bool_and(ok), bool_or(ok), every(qty > -100), bool_and(qty > 0), bool_or(flags > 65534) FROM fact;

-- name: agg_bit
SELECT bit_and(flags), bit_or(flags), bit_xor(flags), bit_and(big), bit_or(qty), bit_xor(big) FROM fact WHERE id % 3 <> 0;

-- name: agg_bit_strings
SELECT bit_and(b8), bit_or(b8), bit_xor(b8), m FROM t_misc WHERE id > 10 GROUP BY m;

-- name: agg_filter
SELECT count(*) FILTER (WHERE ok), sum(amount) FILTER (WHERE status = 'paid'), avg(price) FILTER (WHERE qty > 90), max(id) FILTER (WHERE note LIKE 'n9%'), min(d) FILTER (WHERE false) FROM fact;

-- name: agg_filter_group
SELECT status, count(*) FILTER (WHERE qty > 50) AS hi, count(*) FILTER (WHERE qty <= 50) AS lo, sum(amount) FILTER (WHERE ok) AS s FROM fact GROUP BY status;

-- name: agg_expr_of_aggs
SELECT sum(amount) / nullif(count(*), 0), max(id) - min(id) + 1, (100.0 * count(*) FILTER (WHERE ok) / count(*))::numeric(6,2), coalesce(sum(qty), 0) || '!' FROM fact;

-- name: agg_same_twice
SELECT sum(amount), sum(amount) + 1, avg(amount), count(amount), sum(amount) / count(amount) FROM fact;

-- name: agg_interval_money
SELECT sum(iv), avg(iv), max(tm), sum(cash), count(*) FROM t_misc WHERE m IS NOT NULL;

-- name: agg_count_distinct
SELECT count(DISTINCT cust_id), count(DISTINCT status), count(DISTINCT d), count(DISTINCT (store_id, qty)) FROM fact;

-- name: agg_count_distinct_group
SELECT status, count(DISTINCT prod_id), sum(DISTINCT qty), count(*) FROM fact GROUP BY status;

-- name: agg_distinct_avg
SELECT avg(DISTINCT amount), string_agg(DISTINCT status, ',' ORDER BY status) FROM fact;

-- name: agg_string_agg_order
SELECT store_id, string_agg(code || ':' || id, ',' ORDER BY id) FROM fact WHERE flags < 800 GROUP BY store_id;

-- name: agg_array_agg_order
SELECT status, array_agg(id ORDER BY qty DESC NULLS FIRST, id), array_agg(note ORDER BY id) FILTER (WHERE qty > 80) FROM fact WHERE flags < 700 GROUP BY status;

-- name: agg_json_agg_order
SELECT region_id, json_agg(name ORDER BY store_id), jsonb_agg(store_id ORDER BY store_id), jsonb_object_agg(name, area), json_object_agg(name, opened ORDER BY store_id) FROM store GROUP BY region_id;

-- name: agg_percentile
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY price), percentile_disc(0.9) WITHIN GROUP (ORDER BY amount), percentile_cont(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY qty) FROM fact;

-- name: agg_percentile_group
SELECT status, percentile_disc(0.5) WITHIN GROUP (ORDER BY d), percentile_disc(ARRAY[0, 1]) WITHIN GROUP (ORDER BY note COLLATE "C") FROM fact GROUP BY status;

-- name: agg_mode
SELECT mode() WITHIN GROUP (ORDER BY cust_id), mode() WITHIN GROUP (ORDER BY status), mode() WITHIN GROUP (ORDER BY store_id DESC) FROM fact;

-- name: agg_hypothetical
SELECT rank(50) WITHIN GROUP (ORDER BY qty), dense_rank(50) WITHIN GROUP (ORDER BY qty), percent_rank(50) WITHIN GROUP (ORDER BY qty), cume_dist(50) WITHIN GROUP (ORDER BY qty DESC NULLS LAST) FROM fact;

-- name: agg_user_combine
SELECT my_xor(big), my_span(qty), my_span(flags) FROM fact;

-- name: agg_user_combine_group
SELECT store_id, my_xor(id), my_span(prod_id) FROM fact GROUP BY store_id;

-- name: agg_user_no_combine
SELECT status, my_sum_nocombine(qty), count(*) FROM fact GROUP BY status;

-- name: agg_range_agg
SELECT id % 6 AS k, range_agg(dr), range_intersect_agg(nr), max(lower(ir)), min(upper(ir)) FROM t_rng WHERE id < 800 GROUP BY 1;

-- name: agg_num_extremes
SELECT count(n), sum(n) FILTER (WHERE n < 'Infinity'), max(n), min(n) FILTER (WHERE n > '-Infinity' AND n < -1), avg(n) FILTER (WHERE n > 'Infinity') FROM t_num;

-- name: agg_num_inf_nan
SELECT sum(n), avg(n), sum(n) FILTER (WHERE n > 1e290), stddev(n) FROM t_num;

-- name: agg_num_groups
SELECT i2 % 5 AS k, sum(n2), avg(n2), variance(n2), min(n2), max(n2) FROM t_num GROUP BY 1;

-- name: agg_float_specials
SELECT max(f8), min(f4), sum(f4), avg(f8) FILTER (WHERE f8 < 1e9 AND f8 >= 1), count(*) FILTER (WHERE f8 = 0), count(*) FILTER (WHERE f8 = 'NaN'), max(f8) FILTER (WHERE f8 < 'Infinity') FROM t_num;

-- name: agg_float_inf_plus_minus
SELECT sum(f8) FILTER (WHERE f8 = 'Infinity'), sum(f8) FILTER (WHERE f8 IN ('Infinity', '-Infinity')), avg(f8) FILTER (WHERE f8 = '-Infinity'), stddev(f4) FROM t_num;

-- name: agg_int_limits
SELECT sum(i2), avg(i2), min(i2), max(i2), sum(i8), avg(i8), min(i8), max(i8), bit_and(i8), bit_xor(i8) FROM t_num;

-- name: agg_date_infinity
SELECT min(d), max(d), min(ts), max(ts), min(tz), max(tz), count(*) FILTER (WHERE isfinite(d)), count(*) FILTER (WHERE NOT isfinite(tz)) FROM t_dates;

-- name: agg_composite_count
SELECT count(p), count((p).home), count((p).name), min((p).born) FROM t_misc;

-- name: agg_of_case
SELECT sum(CASE WHEN ok THEN 1 ELSE 0 END), sum(CASE status WHEN 'paid' THEN amount WHEN 'refunded' THEN -amount END), count(CASE WHEN qty < 0 THEN 1 END) FROM fact;

-- ===========================================================================
-- GROUP BY, HAVING, GROUPING SETS, DISTINCT
-- ===========================================================================

-- name: group_few
SELECT status, count(*), sum(qty), avg(amount) FROM fact GROUP BY status;

-- name: group_few_ordered
-- order: yes
SELECT status, ok, count(*), max(tl) FROM fact GROUP BY status, ok ORDER BY status NULLS FIRST, ok DESC;

-- name: group_many
SELECT cust_id, count(*), sum(amount), max(d) FROM fact GROUP BY cust_id;

-- name: group_very_many
SELECT prod_id, d, count(*), sum(qty) FROM fact WHERE d >= '2023-01-01' GROUP BY prod_id, d;

-- name: group_unique
SELECT id, sum(qty), max(note) FROM fact WHERE id > 290000 GROUP BY id;

-- name: group_uuid
SELECT count(*), sum(n) FROM (SELECT u, count(*) AS n FROM fact GROUP BY u HAVING count(*) > 1) s;

-- name: group_expression
SELECT extract(year FROM d) AS y, qty / 10 AS b, count(*), sum(amount) FROM fact GROUP BY 1, 2;

-- name: group_text_expr
SELECT left(note, 2), length(note), count(*) FROM fact GROUP BY 1, 2;

-- name: group_bool_null
SELECT ok, amount IS NULL AS an, count(*), sum(id) FROM fact GROUP BY ok, amount IS NULL;

-- name: group_having
SELECT prod_id, count(*) AS n, sum(amount) AS s FROM fact GROUP BY prod_id HAVING count(*) > 2000 AND sum(amount) > 0;

-- name: group_having_no_group
SELECT sum(qty) FROM fact HAVING count(*) > 1000000;

-- name: group_having_subquery
SELECT store_id, avg(amount) FROM fact GROUP BY store_id HAVING avg(amount) > (SELECT avg(amount) FROM fact);

-- name: group_by_pk_dependent
SELECT c.cust_id, c.name, c.segment, count(f.id) FROM customer c JOIN fact f USING (cust_id) WHERE c.cust_id < 60 GROUP BY c.cust_id;

-- name: group_no_agg
SELECT store_id, status FROM fact GROUP BY store_id, status;

-- name: group_const
SELECT 'all' AS k, count(*), sum(amount) FROM fact GROUP BY 1;

-- name: group_numeric_key
SELECT amount, count(*) FROM fact WHERE amount BETWEEN 0 AND 30 GROUP BY amount;

-- name: group_float_key
SELECT rate, count(*), sum(qty) FROM fact GROUP BY rate;

-- name: group_float_specials
SELECT f4 + 0 AS k, count(*), min(id) FROM t_num GROUP BY 1;

-- name: group_enum_ordered
-- order: yes
SELECT m, count(*), min(id) FROM t_misc GROUP BY m ORDER BY m DESC NULLS LAST;

-- name: group_array_key
SELECT ia[1:2] AS k, count(*) FROM t_arr GROUP BY 1;

-- name: group_jsonb_key
SELECT j -> 'b' AS k, count(*), min(id) FROM t_json GROUP BY 1;

-- name: group_composite_key
SELECT (p).home AS k, count(*) FROM t_misc WHERE id < 2000 GROUP BY 1;

-- name: group_record_key
SELECT ROW(store_id, ok) AS k, count(*) FROM fact GROUP BY 1;

-- name: group_range_key
SELECT fr, count(*), max(id) FROM t_rng GROUP BY fr;

-- name: group_misc_keys
SELECT b8, ch, nm, count(*) FROM t_misc GROUP BY b8, ch, nm;

-- name: group_inet_key
SELECT net, family(ip), count(*), max(host(ip)) FROM t_misc GROUP BY 1, 2;

-- name: grouping_sets
SELECT status, store_id, count(*), sum(amount), grouping(status, store_id) FROM fact GROUP BY GROUPING SETS ((status, store_id), (status), (store_id), ());

-- name: grouping_rollup
SELECT extract(year FROM d)::int AS y, extract(month FROM d)::int AS m, count(*), sum(qty) FROM fact GROUP BY ROLLUP (1, 2);

-- name: grouping_cube
SELECT ok, status, qty > 50 AS big, count(*), avg(price) FROM fact GROUP BY CUBE (ok, status, qty > 50);

-- name: grouping_sets_having
SELECT status, ok, count(*) FROM fact GROUP BY GROUPING SETS ((status), (ok)) HAVING count(*) > 30000;

-- name: grouping_sets_distinct_agg
SELECT status, ok, count(DISTINCT store_id) FROM fact GROUP BY ROLLUP (status, ok);

-- name: grouping_sets_mixed
SELECT a.category, a.col, count(*), sum(list_price) FROM (SELECT category, attrs ->> 'col' AS col, list_price FROM product) a GROUP BY a.category, GROUPING SETS ((a.col), ());

-- name: distinct_simple
SELECT DISTINCT status, ok FROM fact;

-- name: distinct_many
SELECT DISTINCT cust_id, store_id FROM fact WHERE qty = 7;

-- name: distinct_ordered
-- order: yes
SELECT DISTINCT store_id, qty % 4 AS q FROM fact ORDER BY 1 DESC NULLS LAST, 2;

-- name: distinct_text
SELECT DISTINCT note FROM fact WHERE note LIKE 'n1%';

-- name: distinct_expr
SELECT DISTINCT date_trunc('month', d)::date FROM fact;

-- name: distinct_on
-- order: yes
SELECT DISTINCT ON (store_id) store_id, id, amount FROM fact WHERE amount IS NOT NULL ORDER BY store_id, amount DESC, id;

-- name: distinct_on_two
-- order: yes
SELECT DISTINCT ON (status, ok) status, ok, id, tl FROM fact ORDER BY status, ok, tl DESC, id;

-- name: distinct_of_agg
SELECT DISTINCT count(*) % 10 FROM fact GROUP BY prod_id;

-- ===========================================================================
-- ORDER BY, LIMIT
-- ===========================================================================

-- name: sort_int
-- order: yes
SELECT id, qty, note FROM fact WHERE flags < 600 ORDER BY qty, id;

-- name: sort_big
-- order: yes
SELECT id, big FROM fact WHERE flags % 20 = 1 ORDER BY big DESC;

-- name: sort_nulls
-- order: yes
SELECT amount, id FROM fact WHERE flags < 1500 ORDER BY amount DESC NULLS FIRST, id DESC;

-- name: sort_float
-- order: yes
SELECT price, id FROM fact WHERE flags < 1500 ORDER BY price NULLS FIRST, id;

-- name: sort_float_specials
-- order: yes
SELECT f8, f4, id FROM t_num ORDER BY f8, id;

-- name: sort_numeric_specials
-- order: yes
SELECT n, id FROM t_num ORDER BY n DESC, id;

-- name: sort_multi_mixed
-- order: yes
SELECT store_id, status, d, id FROM fact WHERE flags % 32 = 5 ORDER BY store_id DESC NULLS LAST, status NULLS FIRST, d DESC, id;

-- name: sort_text_default
-- order: yes
SELECT note, id FROM fact WHERE flags < 2000 ORDER BY note, id;

-- name: sort_expression
-- order: yes
SELECT id, abs(qty - 40) AS k FROM fact WHERE flags < 1000 ORDER BY abs(qty - 40), lower(note) COLLATE "C", id;

-- name: sort_using_operator
-- order: yes
SELECT id, qty FROM fact WHERE flags < 900 ORDER BY qty USING >, id USING <;

-- name: sort_not_projected
-- order: yes
SELECT note FROM fact WHERE flags < 500 ORDER BY id;

-- name: sort_dates
-- order: yes
SELECT d, ts, tz, id FROM t_dates ORDER BY d, id;

-- name: sort_timestamptz_desc
-- order: yes
SELECT id, ts FROM fact WHERE id % 50 = 0 ORDER BY ts DESC NULLS LAST, id;

-- name: sort_uuid
-- order: yes
SELECT u, id FROM fact WHERE flags < 1000 ORDER BY u, id;

-- name: sort_whole_table_count
SELECT count(*), sum(n * id) FROM (SELECT id, row_number() OVER (ORDER BY flags, id) AS n FROM fact) s WHERE n % 1000 = 0;

-- name: sort_pk_desc_limit
-- order: yes
SELECT id, note FROM fact ORDER BY id DESC LIMIT 25;

-- name: topn_simple
-- order: yes
SELECT id, amount FROM fact ORDER BY amount DESC NULLS LAST, id LIMIT 10;

-- name: topn_filtered
-- order: yes
SELECT id, price, status FROM fact WHERE status = 'new' AND price IS NOT NULL ORDER BY price, id LIMIT 100;

-- name: topn_offset
-- order: yes
SELECT id, tl FROM fact ORDER BY tl, id OFFSET 1000 LIMIT 50;

-- name: topn_offset_deep
-- order: yes
SELECT id, flags FROM fact ORDER BY flags DESC, id OFFSET 250000 LIMIT 20;

-- name: topn_limit_zero
-- order: yes
SELECT id FROM fact ORDER BY flags, id LIMIT 0;

-- name: topn_limit_all
-- order: yes
SELECT id, qty FROM t_block JOIN fact ON id = a ORDER BY id LIMIT ALL;

-- name: topn_offset_beyond
-- order: yes
SELECT id FROM fact ORDER BY flags, id OFFSET 400000;

-- name: topn_with_ties
SELECT qty, id FROM fact WHERE flags < 3000 ORDER BY qty DESC NULLS LAST FETCH FIRST 5 ROWS WITH TIES;

-- name: topn_limit_subquery
-- order: yes
SELECT id, flags FROM fact ORDER BY flags, id LIMIT (SELECT count(*) / 8 FROM t_block);

-- name: topn_group
-- order: yes
SELECT cust_id, sum(amount) AS s FROM fact GROUP BY cust_id ORDER BY s DESC NULLS LAST, cust_id LIMIT 15;

-- name: topn_join
-- order: yes
SELECT c.name, f.amount, f.id FROM fact f JOIN customer c USING (cust_id) ORDER BY f.amount DESC NULLS LAST, f.id LIMIT 20;

-- name: topn_union
-- order: yes
SELECT id, val FROM v_union WHERE val IS NOT NULL ORDER BY val DESC, id DESC, src LIMIT 20;

-- name: limit_inside
SELECT count(*), sum(amount) FROM (SELECT amount FROM fact ORDER BY big LIMIT 12345) s;

-- name: limit_count_only
SELECT count(*) FROM (SELECT 1 FROM fact LIMIT 7777) s;

-- name: sort_incremental
-- order: yes
SELECT id, d, status, qty FROM fact WHERE d >= '2024-11-01' ORDER BY d, status, qty, id;

-- ===========================================================================
-- Joins
-- ===========================================================================

-- name: join_inner_small
SELECT s.name, count(*), sum(f.amount) FROM fact f JOIN store s USING (store_id) GROUP BY s.name;

-- name: join_inner_rows
SELECT f.id, c.name, p.name FROM fact f JOIN customer c USING (cust_id) JOIN product p USING (prod_id) WHERE c.segment = 'gov' AND p.category = 'cat3' AND f.qty = 40;

-- name: join_star_agg
SELECT r.name, p.category, count(*), sum(f.amount), avg(f.price) FROM fact f JOIN store s ON s.store_id = f.store_id JOIN region r ON r.region_id = s.region_id JOIN product p ON p.prod_id = f.prod_id GROUP BY r.name, p.category;

-- name: join_five_way
SELECT r.tz, c.segment, cal.y, count(*), sum(f.qty) FROM fact f JOIN customer c USING (cust_id) JOIN store s USING (store_id) JOIN region r ON r.region_id = s.region_id JOIN calendar cal USING (d) WHERE cal.holiday GROUP BY 1, 2, 3;

-- name: join_left
SELECT count(*), count(c.cust_id), count(f.cust_id), sum(c.credit) FROM fact f LEFT JOIN customer c ON c.cust_id = f.cust_id;

-- name: join_left_filter_on
SELECT f.id, c.name FROM fact f LEFT JOIN customer c ON c.cust_id = f.cust_id AND c.segment = 'online' WHERE f.flags < 500;

-- name: join_left_where_null
SELECT count(*), min(f.cust_id), max(f.cust_id) FROM fact f LEFT JOIN customer c USING (cust_id) WHERE c.cust_id IS NULL;

-- name: join_right
SELECT c.cust_id, f.id FROM fact f RIGHT JOIN customer c ON c.cust_id = f.cust_id AND f.qty = 33 AND f.status = 'void' WHERE c.cust_id % 40 = 0;

-- name: join_right_agg
SELECT p.prod_id, count(f.id), sum(f.qty) FROM (SELECT * FROM fact WHERE status = 'void' AND qty > 80) f RIGHT JOIN product p USING (prod_id) GROUP BY p.prod_id;

-- name: join_full
SELECT count(*), count(f.id), count(p.prod_id) FROM (SELECT id, prod_id FROM fact WHERE qty = 12) f FULL JOIN product p ON p.prod_id = f.prod_id;

-- name: join_full_rows
SELECT a.k, b.k, a.v, b.w FROM hp1 a FULL JOIN hp2 b ON a.k = b.k WHERE coalesce(a.k, b.k) % 29 = 3;

-- name: join_full_inequality_residual
SELECT count(*), count(a.k), count(b.k) FROM hp1 a FULL JOIN hp2 b ON a.k = b.k AND a.v < b.w;

-- name: join_self
SELECT count(*), sum(a.qty - b.qty) FROM fact a JOIN fact b ON b.id = a.id + 1 WHERE a.status = 'new' AND b.status = 'void';

-- name: join_self_uuid
SELECT a.id, b.id FROM fact a JOIN fact b ON a.u = b.u AND a.id < b.id WHERE a.flags < 500;

-- name: join_self_ref
SELECT c.segment, r.segment, count(*) FROM customer c LEFT JOIN customer r ON r.cust_id = c.ref_by GROUP BY 1, 2;

-- name: join_hash_forced
-- set: enable_mergejoin = off
-- set: enable_nestloop = off
SELECT f.status, count(*), sum(d.val) FROM fact f JOIN detail d ON d.fact_id = f.id GROUP BY f.status;

-- name: join_merge_forced
-- set: enable_hashjoin = off
-- set: enable_nestloop = off
SELECT f.status, count(*), sum(d.val) FROM fact f JOIN detail d ON d.fact_id = f.id GROUP BY f.status;

-- name: join_merge_left_forced
-- set: enable_hashjoin = off
-- set: enable_nestloop = off
SELECT count(*), count(d.fact_id), sum(d.val) FROM fact f LEFT JOIN detail d ON d.fact_id = f.id;

-- name: join_nestloop_forced
-- set: enable_hashjoin = off
-- set: enable_mergejoin = off
SELECT f.id, c.name FROM fact f JOIN customer c ON c.cust_id = f.cust_id WHERE f.flags < 900;

-- name: join_nestloop_index_inner
SELECT f.id, d.line, d.txt FROM fact f JOIN detail d ON d.fact_id = f.id WHERE f.flags BETWEEN 11000 AND 11200;

-- name: join_nestloop_inequality
SELECT count(*), sum(b.a) FROM store s JOIN t_block b ON b.a > s.store_id;

-- name: join_nestloop_range
SELECT r.id, count(*) FROM t_rng r JOIN t_block b ON r.ir @> b.a WHERE r.id < 300 GROUP BY r.id;

-- name: join_memoize
-- set: enable_hashjoin = off
-- set: enable_mergejoin = off
SELECT count(*), sum(p.weight) FROM fact f, LATERAL (SELECT weight FROM product p WHERE p.prod_id = f.prod_id) p WHERE f.qty > 70;

-- name: join_parallel_hash_both_big
SELECT count(*), sum(a.qty), sum(b.qty) FROM fact a JOIN fact b ON a.id = b.flags;

-- name: join_hash_batches
-- set: work_mem = 256kB
SELECT count(*), sum(length(b.note)) FROM fact a JOIN fact b ON a.id = b.id WHERE a.qty > 20;

-- name: join_cross_small
SELECT r.name, b.b, count(*) FROM region r CROSS JOIN t_block b GROUP BY 1, 2;

-- name: join_using_multi
SELECT count(*), sum(a.id) FROM fact a JOIN fact b USING (store_id, d, qty);

-- name: join_expr_keys
SELECT count(*) FROM fact f JOIN t_block b ON f.flags % 1000 = b.a * 3 AND f.code LIKE 'A%';

-- name: join_cross_type_keys
SELECT count(*), sum(f.qty) FROM fact f JOIN t_num n ON n.i8 = f.id OR n.i2 = f.flags WHERE n.id < 3 AND f.id < 2000;

-- name: join_int_bigint
SELECT count(*) FROM fact f JOIN ev2 e ON e.val = f.flags;

-- name: join_text_key
SELECT count(*), min(f.id) FROM fact f JOIN hp1 h ON h.t = replace(f.note, 'n', 'p') WHERE h.k < 500;

-- name: join_null_keys
SELECT count(*) FROM fact a JOIN (SELECT DISTINCT cust_id FROM fact WHERE flags < 50) b ON a.cust_id IS NOT DISTINCT FROM b.cust_id WHERE a.flags < 5000;

-- name: semi_exists
SELECT count(*), sum(credit) FROM customer c WHERE EXISTS (SELECT 1 FROM fact f WHERE f.cust_id = c.cust_id AND f.amount > 9000);

-- name: semi_exists_rows
SELECT id, qty FROM fact f WHERE flags < 2000 AND EXISTS (SELECT FROM detail d WHERE d.fact_id = f.id AND d.val > 500);

-- name: semi_in
SELECT count(*), min(name) FROM product WHERE prod_id IN (SELECT prod_id FROM fact WHERE qty = 94 AND status = 'void');

-- name: semi_in_multi
SELECT id FROM fact WHERE (store_id, prod_id) IN (SELECT store_id, prod_id FROM fact WHERE flags < 40) AND qty > 85;

-- name: anti_not_exists
SELECT cust_id, name FROM customer c WHERE NOT EXISTS (SELECT 1 FROM fact f WHERE f.cust_id = c.cust_id AND f.status = 'paid' AND f.qty > 70);

-- name: anti_not_exists_big
SELECT count(*), sum(id) FROM fact f WHERE NOT EXISTS (SELECT 1 FROM detail d WHERE d.fact_id = f.id AND d.line = 2);

-- name: anti_not_in
SELECT count(*) FROM fact WHERE prod_id NOT IN (SELECT prod_id FROM product WHERE category IN ('cat1', 'cat2'));

-- name: anti_not_in_with_null
SELECT count(*) FROM customer WHERE cust_id NOT IN (SELECT cust_id FROM fact WHERE flags < 1000);

-- name: join_semi_under_agg
SELECT c.segment, sum(f.amount) FROM fact f JOIN customer c USING (cust_id) WHERE f.store_id IN (SELECT store_id FROM store WHERE region_id IN (1, 3)) GROUP BY c.segment;

-- name: lateral_agg
SELECT c.cust_id, x.n, x.s FROM customer c CROSS JOIN LATERAL (SELECT count(*) AS n, sum(f.amount) AS s FROM fact f WHERE f.cust_id = c.cust_id) x WHERE c.cust_id BETWEEN 100 AND 160;

-- name: lateral_topn
SELECT s.store_id, x.id, x.amount FROM store s, LATERAL (SELECT id, amount FROM fact f WHERE f.store_id = s.store_id AND f.status = 'void' ORDER BY amount DESC NULLS LAST, id LIMIT 2) x WHERE s.store_id < 12;

-- name: lateral_left
SELECT r.region_id, x.store_id FROM region r LEFT JOIN LATERAL (SELECT store_id FROM store s WHERE s.region_id = r.region_id ORDER BY s.opened, store_id LIMIT 1) x ON true;

-- name: lateral_values
SELECT f.id, v.k, v.val FROM fact f, LATERAL (VALUES ('q', f.qty::int), ('s', f.store_id::int)) AS v(k, val) WHERE f.flags < 200;

-- name: lateral_unnest
SELECT p.prod_id, t.tag, t.ord FROM product p, unnest(p.tags) WITH ORDINALITY AS t(tag, ord) WHERE p.prod_id % 5 = 0;

-- name: values_join
SELECT v.label, count(*), sum(f.amount) FROM fact f JOIN (VALUES ('paid', 'money in'), ('refunded', 'money out'), ('absent', 'x')) AS v(status, label) USING (status) GROUP BY v.label;

-- name: values_left_join
SELECT v.x, count(f.id) FROM (VALUES (1), (500), (99999)) AS v(x) LEFT JOIN fact f ON f.cust_id = v.x GROUP BY v.x;

-- name: join_generate_series
SELECT g, count(f.id) FROM generate_series(-6, 100) g LEFT JOIN fact f ON f.qty = g GROUP BY g;

-- name: join_function_scan_text
SELECT s.w, count(*) FROM regexp_split_to_table('paid,void,new,nothing', ',') AS s(w) JOIN fact f ON f.status = s.w GROUP BY s.w;

-- name: join_subquery_agg
SELECT c.segment, avg(t.n) AS avg_n, max(t.s) FROM customer c JOIN (SELECT cust_id, count(*) AS n, sum(amount) AS s FROM fact GROUP BY cust_id) t USING (cust_id) GROUP BY c.segment;

-- name: join_two_aggs
SELECT a.store_id, a.n, b.n FROM (SELECT store_id, count(*) AS n FROM fact WHERE ok GROUP BY 1) a FULL JOIN (SELECT store_id, count(*) AS n FROM fact WHERE NOT ok GROUP BY 1) b USING (store_id);

-- name: join_whole_rows
SELECT s, r FROM store s JOIN region r USING (region_id);

-- name: join_placeholder_left
SELECT f.id, x.k FROM fact f LEFT JOIN (SELECT prod_id, coalesce(list_price, -1) AS k FROM product WHERE weight > 600) x USING (prod_id) WHERE f.flags < 600;

-- ===========================================================================
-- Partitioned tables and inheritance
-- ===========================================================================

-- name: part_scan
SELECT id, d, kind, val FROM ev WHERE val = 500;

-- name: part_prune_static
SELECT count(*), sum(amt) FROM ev WHERE d BETWEEN '2021-03-01' AND '2022-02-28';

-- name: part_prune_one
SELECT id, kind, amt FROM ev WHERE d = '2023-05-05';

-- name: part_prune_none
SELECT * FROM ev WHERE d > '2026-01-01';

-- name: part_empty_leaf
SELECT count(*), max(val) FROM ev WHERE d >= '2025-01-01';

-- name: part_prune_stable
SELECT count(*), sum(val) FROM ev WHERE d < (TIMESTAMPTZ '2021-07-01 00:00:00+00')::date;

-- name: part_prune_initplan
SELECT count(*), sum(val) FROM ev WHERE d = (SELECT max(d) FROM calendar WHERE holiday AND y = 2022);

-- name: part_agg
SELECT kind, count(*), sum(amt), avg(val) FROM ev GROUP BY kind;

-- name: part_agg_by_key
SELECT d, count(*), max(val) FROM ev GROUP BY d;

-- name: part_agg_partitionwise
-- set: enable_partitionwise_aggregate = on
SELECT d, count(*), sum(amt) FROM ev GROUP BY d;

-- name: part_agg_partitionwise_partial
-- set: enable_partitionwise_aggregate = on
SELECT kind, count(*), sum(amt) FROM ev GROUP BY kind;

-- name: part_order
-- order: yes
SELECT d, id, val FROM ev WHERE val > 950 ORDER BY d, id;

-- name: part_topn
-- order: yes
SELECT id, amt, d FROM ev ORDER BY amt DESC, id LIMIT 40;

-- name: part_whole_row
SELECT e FROM ev e WHERE id % 2500 = 17;

-- name: part_leaf_direct
SELECT amt, val, kind, d, id FROM ev_2023 WHERE val < 20;

-- name: part_join_dim
SELECT cal.y, e.kind, count(*), sum(e.amt) FROM ev e JOIN calendar cal USING (d) GROUP BY 1, 2;

-- name: part_join_fact
SELECT count(*), sum(f.qty) FROM ev e JOIN fact f ON f.id = e.id WHERE e.kind = 'buy';

-- name: part_join_part
SELECT count(*), sum(a.val), sum(b.val) FROM ev a JOIN ev2 b ON a.id = b.id AND a.d > b.d;

-- name: part_wise_join
-- set: enable_partitionwise_join = on
SELECT count(*), sum(a.v), sum(b.w) FROM hp1 a JOIN hp2 b ON a.k = b.k;

-- name: part_wise_join_group
-- set: enable_partitionwise_join = on
-- set: enable_partitionwise_aggregate = on
SELECT a.k, count(b.k), sum(b.w) FROM hp1 a LEFT JOIN hp2 b ON a.k = b.k GROUP BY a.k;

-- name: part_nested_scan
SELECT id, d, area, val, note FROM ev2 WHERE val < 300;

-- name: part_nested_agg
SELECT area, note IS NULL AS nn, count(*), sum(val), min(d), max(d) FROM ev2 GROUP BY 1, 2;

-- name: part_nested_prune
SELECT count(*), sum(val) FROM ev2 WHERE d < '2021-06-01' AND area IN ('n', 'sw');

-- name: part_nested_prune_null
SELECT count(*), sum(val) FROM ev2 WHERE d < '2022-01-01' AND area IS NULL;

-- name: part_nested_prune_hash
SELECT * FROM ev2 WHERE id = 12345;

-- name: part_nested_default
SELECT count(*), min(d), max(d) FROM ev2 WHERE d >= '2024-01-01' OR d < '2020-02-01';

-- name: part_nested_tableoid
SELECT tableoid::regclass::text, count(*), sum(id) FROM ev2 GROUP BY 1;

-- name: part_subplan_filter
SELECT count(*) FROM ev WHERE val IN (SELECT a FROM t_block WHERE b = 'b2');

-- name: part_append_mixed_sizes
SELECT src, count(*), sum(val) FROM v_union GROUP BY src;

-- name: inh_parent
SELECT id, v, t FROM inh WHERE v = 10;

-- name: inh_only
SELECT count(*), sum(v), max(id) FROM ONLY inh;

-- name: inh_agg
SELECT t, count(*), sum(v) FROM inh GROUP BY t;

-- name: inh_exclusion
SELECT count(*) FROM inh WHERE id < 100;

-- name: inh_child_columns
SELECT id, extra_b, v FROM inh_b WHERE extra_b < '2021-06-07 00:00:00+00';

-- name: inh_whole_row
SELECT i, i.tableoid::regclass FROM inh i WHERE id % 1000 = 1;

-- name: inh_join
SELECT i.t, count(*), sum(f.qty) FROM inh i JOIN fact f ON f.id = i.id GROUP BY i.t;

-- ===========================================================================
-- Set operations, CTEs, subqueries
-- ===========================================================================

-- name: set_union_all
SELECT id, val FROM ev WHERE val < 10 UNION ALL SELECT id, val::int FROM ev2 WHERE val < 100 UNION ALL SELECT a, a FROM t_block;

-- name: set_union
SELECT store_id, status FROM fact WHERE qty > 50 UNION SELECT store_id, status FROM fact WHERE ok;

-- name: set_union_types
SELECT qty AS x FROM fact WHERE flags < 200 UNION SELECT amount FROM fact WHERE flags < 200 UNION SELECT NULL;

-- name: set_union_all_agg
SELECT k, sum(n) FROM (SELECT status AS k, count(*) AS n FROM fact GROUP BY 1 UNION ALL SELECT kind, count(*) FROM ev GROUP BY 1) s GROUP BY k;

-- name: set_intersect
SELECT cust_id FROM fact WHERE status = 'void' AND qty > 80 INTERSECT SELECT cust_id FROM customer WHERE segment = 'online';

-- name: set_intersect_all
SELECT store_id, qty FROM fact WHERE flags < 3000 INTERSECT ALL SELECT store_id, qty FROM fact WHERE flags > 62000;

-- name: set_except
SELECT cust_id FROM customer EXCEPT SELECT cust_id FROM fact WHERE ok AND qty > 80;

-- name: set_except_all
SELECT prod_id FROM fact WHERE flags < 2000 EXCEPT ALL SELECT prod_id FROM product;

-- name: set_nested
(SELECT a FROM t_block EXCEPT SELECT store_id FROM store) UNION ALL (SELECT qty FROM fact WHERE flags < 100 INTERSECT SELECT a FROM t_block);

-- name: set_union_all_order
-- order: yes
(SELECT id, 'f' AS src FROM fact WHERE flags < 100) UNION ALL (SELECT id, 'e' FROM ev WHERE val = 3) ORDER BY id, src;

-- name: set_union_all_one_empty
SELECT id FROM fact WHERE flags < 30 UNION ALL SELECT a FROM t_empty UNION ALL SELECT id FROM fact WHERE false;

-- name: cte_inlined
WITH x AS (SELECT * FROM fact WHERE status = 'void') SELECT store_id, count(*), sum(amount) FROM x WHERE qty > 10 GROUP BY store_id;

-- name: cte_materialized
WITH x AS MATERIALIZED (SELECT id, store_id, amount FROM fact WHERE status = 'void') SELECT store_id, count(*), sum(amount) FROM x GROUP BY store_id;

-- name: cte_twice
WITH t AS (SELECT store_id, sum(amount) AS s FROM fact GROUP BY store_id) SELECT a.store_id, a.s, (SELECT max(s) FROM t) - a.s AS gap FROM t a WHERE a.s > (SELECT avg(s) FROM t);

-- name: cte_not_materialized
WITH t AS NOT MATERIALIZED (SELECT * FROM fact) SELECT (SELECT count(*) FROM t WHERE ok), (SELECT sum(qty) FROM t WHERE NOT ok);

-- name: cte_recursive_tree
WITH RECURSIVE r AS (SELECT id, parent, 1 AS depth, label::text AS path FROM tree WHERE parent IS NULL UNION ALL SELECT t.id, t.parent, r.depth + 1, r.path || '/' || t.id FROM tree t JOIN r ON t.parent = r.id) SELECT depth, count(*), min(path COLLATE "C") FROM r GROUP BY depth;

-- name: cte_recursive_counter
WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 50) SELECT i, (SELECT count(*) FROM fact WHERE qty = i) FROM n WHERE i % 10 = 0;

-- name: cte_recursive_join_fact
WITH RECURSIVE up AS (SELECT cust_id, ref_by FROM customer WHERE cust_id = 5999 UNION SELECT c.cust_id, c.ref_by FROM customer c JOIN up ON up.ref_by = c.cust_id) SELECT u.cust_id, count(f.id) FROM up u LEFT JOIN fact f USING (cust_id) GROUP BY u.cust_id;

-- name: cte_recursive_search
-- order: yes
WITH RECURSIVE r AS (SELECT id, parent FROM tree WHERE id = 1 UNION ALL SELECT t.id, t.parent FROM tree t JOIN r ON t.parent = r.id) SEARCH DEPTH FIRST BY id SET o SELECT id, o FROM r WHERE id < 400 ORDER BY o;

-- name: sub_initplan
SELECT id, amount FROM fact WHERE amount = (SELECT max(amount) FROM fact);

-- name: sub_initplan_in_agg
SELECT count(*), sum(amount - (SELECT avg(credit) FROM customer)) FROM fact WHERE amount > (SELECT avg(amount) FROM fact);

-- name: sub_initplan_several
SELECT count(*) FROM fact WHERE d BETWEEN (SELECT min(d) FROM ev WHERE kind = 'buy') AND (SELECT max(d) FROM ev2 WHERE area = 'n') AND qty > (SELECT avg(a) FROM t_block) AND EXISTS (SELECT 1 FROM t_one);

-- name: sub_initplan_types
SELECT count(*) FROM fact WHERE note < (SELECT max(name) FROM region) AND ts > (SELECT min(tz) FROM t_dates WHERE isfinite(tz)) AND u > (SELECT md5('a')::uuid) AND price < (SELECT 1500.5::float8) AND status = ANY (SELECT * FROM (VALUES ('paid'), ('new')) v);

-- name: sub_initplan_array
SELECT count(*), sum(id) FROM fact WHERE store_id = ANY (ARRAY(SELECT store_id FROM store WHERE region_id = 2));

-- name: sub_initplan_null
SELECT count(*) FROM fact WHERE amount > (SELECT c FROM t_empty);

-- name: sub_initplan_row
SELECT id, store_id, qty FROM fact WHERE (store_id, qty) = (SELECT store_id, qty FROM fact WHERE store_id IS NOT NULL AND qty IS NOT NULL ORDER BY id LIMIT 1);

-- name: sub_correlated_select
SELECT c.cust_id, (SELECT count(*) FROM fact f WHERE f.cust_id = c.cust_id), (SELECT max(f.amount) FROM fact f WHERE f.cust_id = c.cust_id AND f.ok) FROM customer c WHERE c.cust_id BETWEEN 200 AND 280;

-- name: sub_correlated_where
SELECT f.id, f.amount FROM fact f WHERE f.flags < 900 AND f.amount > (SELECT avg(p.list_price) FROM product p WHERE p.category = 'cat' || f.qty % 12);

-- name: sub_correlated_in_agg
SELECT sum((SELECT count(*) FROM t_block b WHERE b.a < s.store_id)) FROM store s;

-- name: sub_hashed
SELECT count(*) FROM fact WHERE flags < 100 OR prod_id IN (SELECT prod_id FROM product WHERE category = 'cat5');

-- name: sub_hashed_not_in
SELECT count(*), sum(id) FROM fact WHERE ok AND store_id NOT IN (SELECT store_id FROM store WHERE region_id = 4 AND store_id IS NOT NULL);

-- name: sub_hashed_select
SELECT id, cust_id IN (SELECT cust_id FROM customer WHERE segment = 'gov') AS gov FROM fact WHERE flags < 700;

-- name: sub_all
SELECT count(*), sum(id) FROM fact WHERE flags < 3000 AND amount >= ALL (SELECT list_price FROM product WHERE category = 'cat3' AND list_price < 950);

-- name: sub_from_nested
SELECT k, avg(n) FROM (SELECT store_id % 3 AS k, n FROM (SELECT store_id, prod_id, count(*) AS n FROM fact GROUP BY 1, 2) a WHERE n > 1) b GROUP BY k;

-- name: sub_exists_uncorrelated
SELECT count(*) FROM fact WHERE EXISTS (SELECT 1 FROM ev WHERE val = 999) AND NOT EXISTS (SELECT 1 FROM t_empty);

-- name: sub_scalar_arith
SELECT (SELECT count(*) FROM fact) - (SELECT count(*) FROM ev) AS diff, (SELECT sum(qty) FROM fact WHERE ok) AS q;

-- name: sub_array_subquery
SELECT s.store_id, ARRAY(SELECT f.id FROM fact f WHERE f.store_id = s.store_id AND f.status = 'void' AND f.qty = 50 ORDER BY f.id) FROM store s;

-- ===========================================================================
-- Window functions
-- ===========================================================================

-- name: win_over_agg
SELECT status, store_id, n, sum(n) OVER (PARTITION BY status), rank() OVER (PARTITION BY status ORDER BY n DESC) FROM (SELECT status, store_id, count(*) AS n FROM fact GROUP BY 1, 2) s;

-- name: win_row_number
SELECT id, store_id, rn FROM (SELECT id, store_id, row_number() OVER (PARTITION BY store_id ORDER BY amount DESC NULLS LAST, id) AS rn FROM fact WHERE status = 'void') s WHERE rn <= 3;

-- name: win_running
-- order: yes
SELECT d, n, sum(n) OVER (ORDER BY d), avg(n) OVER (ORDER BY d ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) FROM (SELECT d, count(*) AS n FROM fact WHERE d >= '2024-06-01' GROUP BY d) s ORDER BY d;

-- name: win_lag_lead
SELECT id, lag(qty) OVER w, lead(note, 2, 'end') OVER w, first_value(id) OVER w, nth_value(qty, 3) OVER w, ntile(7) OVER w FROM fact WHERE flags < 1200 WINDOW w AS (PARTITION BY store_id ORDER BY id);

-- name: win_share
SELECT category, total, total / sum(total) OVER () AS share, dense_rank() OVER (ORDER BY total DESC), cume_dist() OVER (ORDER BY total) FROM v_cat_totals;

-- name: win_range_frame
SELECT id, d, count(*) OVER (ORDER BY d RANGE BETWEEN INTERVAL '7 days' PRECEDING AND CURRENT ROW), sum(amount) OVER (PARTITION BY ok ORDER BY d GROUPS 1 PRECEDING) FROM fact WHERE flags < 500 AND d IS NOT NULL;

-- name: win_agg_in_window
SELECT store_id, sum(amount), sum(sum(amount)) OVER (ORDER BY store_id), rank() OVER (ORDER BY count(*) DESC, store_id) FROM fact GROUP BY store_id;

-- name: win_whole_fact
SELECT count(*), max(m), sum(r) FROM (SELECT max(qty) OVER (PARTITION BY prod_id) AS m, rank() OVER (PARTITION BY prod_id ORDER BY id) AS r FROM fact) s;

-- ===========================================================================
-- Dates, time zones, settings
-- ===========================================================================

-- name: dt_extract
SELECT extract(year FROM d) AS y, extract(quarter FROM d) AS q, extract(isodow FROM d) AS dow, extract(week FROM d) AS w, count(*) FROM fact WHERE d < '2020-04-01' GROUP BY 1, 2, 3, 4;

-- name: dt_trunc_month
SELECT date_trunc('month', tl), count(*), sum(amount) FROM fact GROUP BY 1;

-- name: dt_trunc_day_tz
-- set: TimeZone = America/New_York
SELECT date_trunc('day', ts) AS day, count(*), min(ts), max(ts) FROM fact WHERE ts >= '2021-03-10' AND ts < '2021-03-20' GROUP BY 1;

-- name: dt_trunc_explicit_tz
SELECT date_trunc('day', ts, 'Asia/Kathmandu') AS day, count(*) FROM fact WHERE ts < '2020-03-01 00:00:00+00' GROUP BY 1;

-- name: dt_at_time_zone
SELECT id, tz AT TIME ZONE 'Europe/Berlin', ts AT TIME ZONE 'America/Los_Angeles', tz AT TIME ZONE INTERVAL '-03:30' FROM t_dates WHERE id % 9 = 1;

-- name: dt_text_kolkata
-- set: TimeZone = Asia/Kolkata
-- set: DateStyle = German
SELECT id, tz::text, tz::date, tz::time, d::text, ts::text, ts::timestamptz FROM t_dates WHERE id % 7 = 3;

-- name: dt_text_sql_style
-- set: DateStyle = SQL, DMY
-- set: IntervalStyle = iso_8601
-- set: TimeZone = Australia/Lord_Howe
SELECT id, tz::text, d::text, ts::text, (tz - '2020-02-03 00:00:00+00')::text FROM t_dates WHERE isfinite(tz) AND id % 7 = 4;

-- name: dt_dst_group
-- set: TimeZone = Europe/London
SELECT extract(hour FROM tz) AS h, extract(timezone FROM tz) AS off, count(*) FROM t_dates WHERE isfinite(tz) GROUP BY 1, 2;

-- name: dt_date_cast_filter
-- set: TimeZone = Pacific/Auckland
SELECT count(*), min(id), max(id) FROM fact WHERE ts::date = '2021-04-04' OR ts::timestamp < '2020-01-02';

-- name: dt_date_literal_datestyle
-- set: DateStyle = ISO, DMY
SELECT count(*), min(id) FROM fact WHERE d = '03/04/2022'::text::date;

-- name: dt_to_char
SELECT to_char(ts, 'YYYY-MM-DD HH24:MI:SS TZ'), to_char(d, 'Day DDD IW Mon'), to_char(amount, '999G990D00'), to_char(qty, 'S000'), to_char(price, '9.99EEEE'), id FROM fact WHERE flags < 500;

-- name: dt_to_date_parse
SELECT id, to_date(to_char(d, 'DDMMYYYY'), 'DDMMYYYY') = d, to_timestamp(extract(epoch FROM ts)::int8) = date_trunc('second', ts), to_number(amount::text, '99999999.99') FROM fact WHERE flags < 300;

-- name: dt_age_interval
SELECT id, age(tl, TIMESTAMP '2020-01-31'), tl - TIMESTAMP '2021-01-01', d - DATE '2020-02-29', tl + INTERVAL '1 month 1 day', justify_interval(tl - TIMESTAMP '2022-02-02 12:00'), make_date(2020, 2, extract(day FROM d)::int % 28 + 1) FROM fact WHERE flags BETWEEN 12000 AND 12300;

-- name: dt_overlaps_bin
SELECT date_bin('15 minutes', tl, TIMESTAMP '2001-01-01') AS b, count(*) FROM fact WHERE (tl, INTERVAL '1 hour') OVERLAPS (TIMESTAMP '2022-05-05 08:00', TIMESTAMP '2022-05-08 17:00') GROUP BY 1;

-- name: dt_interval_output
-- set: IntervalStyle = postgres_verbose
SELECT id, iv::text, iv * 2, extract(epoch FROM iv) FROM t_misc WHERE id % 60 = 1;

-- name: dt_special_dates
SELECT d, ts, count(*) FROM t_dates WHERE NOT isfinite(d) OR d < '0001-01-01' OR ts IN ('infinity', '-infinity') GROUP BY 1, 2;

-- name: dt_timetz
SELECT tmz, count(*), min(id) FROM t_misc WHERE tmz < '12:30:00+00' GROUP BY tmz;

-- name: now_filter
SELECT count(*), max(id) FROM fact WHERE ts < now() AND tl < localtimestamp AND d < current_date;

-- name: now_consistent
SELECT count(*) FILTER (WHERE now() = transaction_timestamp()), count(*) FILTER (WHERE current_timestamp = now()), count(DISTINCT now()), count(DISTINCT statement_timestamp()) FROM fact WHERE now() > '2020-01-01 00:00:00+00';

-- name: now_distinct_per_row
SELECT count(DISTINCT (now(), current_date, localtime)), bool_and(age(now()) <= age(DATE '1990-01-01')) FROM fact;

-- name: env_user
SELECT count(*) FROM fact WHERE current_user = session_user AND current_database() <> '' AND current_schema() = 'public' AND 'public' = ANY (current_schemas(false));

-- name: env_setting_filter
-- set: work_mem = 7MB
SELECT count(*), count(DISTINCT current_setting('work_mem')), min(current_setting('work_mem')) FROM fact WHERE current_setting('TimeZone') <> '' AND id % 2 = 0;

-- name: env_custom_setting
-- set: corpus.threshold = 64000
SELECT count(*), max(flags) FROM fact WHERE flags > coalesce(nullif(current_setting('corpus.threshold', true), ''), '100')::int;

-- name: env_search_path
-- set: search_path = pg_catalog, public
SELECT count(*), 'fact'::regclass::text, min(f_lookup(region_id)) FROM store;

-- name: env_regclass_output
SELECT o::regtype::text, o::regproc::text, count(*) FROM t_misc WHERE o IN (16, 23, 25, 1007, 1299, 1700) GROUP BY 1, 2;

-- name: env_extra_float_digits
-- set: extra_float_digits = -6
SELECT id, price::text, rate::text, (price / 3)::text FROM fact WHERE flags < 300;

-- name: env_bytea_output
-- set: bytea_output = escape
SELECT id, by::text, by, substring(by from 3 for 4), get_byte(by, 2), length(by) FROM t_misc WHERE id % 50 = 7;

-- name: env_has_privilege
SELECT has_table_privilege('corpus_reader', 'fact', 'SELECT'), count(*) FROM t_block WHERE pg_has_role('corpus_reader', 'USAGE') GROUP BY 1;

-- ===========================================================================
-- Text and collations
-- ===========================================================================

-- name: text_min_max_collations
SELECT min(c), max(c), min(u), max(u), min(de), max(de), min(nat), max(nat), min(def), max(def), min(v), max(bp) FROM t_text;

-- name: text_min_max_ci
SELECT lower(min(ci)), lower(max(ci)) FROM t_text WHERE ci <> '';

-- name: text_sort_c
-- order: yes
SELECT c, id FROM t_text ORDER BY c, id;

-- name: text_sort_icu
-- order: yes
SELECT u, id FROM t_text ORDER BY u, id;

-- name: text_sort_de
-- order: yes
SELECT de, id FROM t_text WHERE id % 3 = 0 ORDER BY de DESC, id;

-- name: text_sort_natural
-- order: yes
SELECT nat, id FROM t_text WHERE nat ~ '[0-9]' ORDER BY nat, id;

-- name: text_sort_ci
-- order: yes
SELECT lower(ci), id FROM t_text WHERE id % 2 = 0 ORDER BY ci, id;

-- name: text_sort_explicit_collate
-- order: yes
SELECT def, id FROM t_text ORDER BY def COLLATE "und-x-icu" DESC NULLS LAST, id LIMIT 200;

-- name: text_group_ci
SELECT lower(ci) COLLATE "C" AS k, n FROM (SELECT ci, count(*) AS n FROM t_text GROUP BY ci) s;

-- name: text_distinct_ci
SELECT count(*) FROM (SELECT DISTINCT ci FROM t_text) s;

-- name: text_count_distinct_ci
SELECT count(DISTINCT ci), count(DISTINCT c), count(DISTINCT u) FROM t_text;

-- name: text_filter_ci
SELECT id, ci FROM t_text WHERE ci = 'APPLE' OR ci = 'strasse';

-- name: text_join_ci
SELECT count(*), min(a.id), max(b.id) FROM t_text a JOIN t_text b ON a.ci = b.ci AND a.id < b.id WHERE a.id < 800;

-- name: text_filter_range_icu
SELECT count(*), min(id), max(id) FROM t_text WHERE u > 'f' AND u < 'z' AND c > 'a';

-- name: text_group_icu
SELECT u, count(*) FROM t_text GROUP BY u;

-- name: text_upper_lower
SELECT upper(de), lower(u), initcap(c), length(u), octet_length(u), id FROM t_text WHERE id % 8 = 0;

-- name: text_bpchar
SELECT bp, length(bp), bp || '|', v, count(*) FROM t_text GROUP BY bp, v;

-- name: text_ilike_icu
SELECT count(*) FILTER (WHERE u ILIKE 'É%'), count(*) FILTER (WHERE de ILIKE '%SS%'), count(*) FILTER (WHERE c LIKE '_pple%') FROM t_text;

-- name: text_normalize
SELECT normalize(u, NFD) <> u AS decomposes, count(*), sum(length(normalize(u, NFD))) FROM t_text GROUP BY 1;

-- name: text_fulltext
SELECT id, ts_rank(tsv, to_tsquery('simple', 'cats | 7')) FROM t_misc WHERE tsv @@ to_tsquery('simple', '7 & (cats | dogs)');

-- name: text_fulltext_config
SELECT count(*), sum(length(to_tsvector('english', name))) FROM product WHERE to_tsvector('english', name) @@ plainto_tsquery('english', 'red gears');

-- ===========================================================================
-- Arrays, ranges, jsonb, composites and other types
-- ===========================================================================

-- name: arr_ops
SELECT id, ia[1], ia[2:3], ia || 9, array_length(ia, 1), cardinality(ta), array_position(ia, 3), m[1][2], array_remove(ta, NULL), array_to_string(ta, ';', '-') FROM t_arr WHERE id % 12 = 1;

-- name: arr_contains
SELECT count(*), min(id) FROM t_arr WHERE ia @> '{3,4}' OR ta && ARRAY['b7', 'a3'] OR l <@ '{1,2,3}';

-- name: arr_any_all
SELECT count(*) FILTER (WHERE 4 = ANY (ia)), count(*) FILTER (WHERE 4 <> ALL (ia)), count(*) FILTER (WHERE 'x' = ANY (ta)) FROM t_arr;

-- name: arr_compare_sort
-- order: yes
SELECT ia, ta, id FROM t_arr WHERE id % 5 = 0 ORDER BY ia NULLS FIRST, ta, id;

-- name: arr_unnest_agg
SELECT x, count(*) FROM (SELECT unnest(ia) AS x FROM t_arr) s GROUP BY x;

-- name: arr_unnest_select
SELECT id, unnest(ta), generate_series(1, 2) FROM t_arr WHERE id % 50 = 3;

-- name: arr_slices_multidim
SELECT m, m[1:2][2:2], array_dims(m), count(*) FROM t_arr GROUP BY 1, 2, 3;

-- name: arr_numeric
SELECT na, count(*), sum(na[1]) FROM t_arr GROUP BY na;

-- name: srf_series
SELECT id, generate_series(1, qty % 4) AS g FROM fact WHERE flags < 300 AND qty > 0;

-- name: srf_user
SELECT id, f_srf(qty) FROM fact WHERE flags < 200;

-- name: srf_grouped
SELECT generate_series(1, 3) AS g, status, count(*) FROM fact GROUP BY status;

-- name: srf_regexp_table
SELECT w, count(*) FROM (SELECT regexp_split_to_table(name, ' ') AS w FROM product) s WHERE w !~ '^[0-9]+$' GROUP BY w;

-- name: range_contains
SELECT count(*) FILTER (WHERE ir @> 100), count(*) FILTER (WHERE nr @> 7.5), count(*) FILTER (WHERE dr @> DATE '2020-06-06'), count(*) FILTER (WHERE isempty(ir)), count(*) FILTER (WHERE upper_inf(ir)), count(*) FILTER (WHERE fr @> 2.5::float8) FROM t_rng;

-- name: range_overlap_index
SELECT id, ir FROM t_rng WHERE ir && int4range(490, 495);

-- name: range_ops
SELECT id, lower(ir), upper(ir), ir * int4range(10, 300), nr + numrange(lower(nr), upper(nr) + 1), dr -|- daterange(lower(dr) - 5, lower(dr)), ir << int4range(600, 700), range_merge(ir, int4range(1, 5)) FROM t_rng WHERE id % 15 = 4;

-- name: range_sort
-- order: yes
SELECT ir, dr, id FROM t_rng WHERE id % 6 = 0 ORDER BY ir, dr, id;

-- name: range_timestamptz
-- set: TimeZone = Europe/Paris
SELECT tr::text, lower(tr), count(*) FROM t_rng WHERE tr && '[2021-03-28 00:00, 2021-03-28 12:00)'::tstzrange GROUP BY 1, 2;

-- name: multirange_ops
SELECT id, im, im @> 12, im + '{[1,3)}'::int4multirange, im * '{[0,30)}'::int4multirange, range_merge(im), lower(dm), upper(dm) FROM t_rng WHERE id % 40 = 2;

-- name: multirange_group
SELECT im, count(*) FROM t_rng GROUP BY im;

-- name: multirange_unnest
SELECT r, count(*) FROM (SELECT unnest(im) AS r FROM t_rng) s GROUP BY r;

-- name: json_ops
SELECT id, j -> 'a', j ->> 'b', j #> '{b,c}', j #>> '{tags,0}', j - 'a', j || '{"z":1}'::jsonb, jsonb_typeof(j) FROM t_json WHERE jsonb_typeof(j) = 'object' AND id % 30 = 6;

-- name: json_filter_contains
SELECT id, j FROM t_json WHERE j @> '{"b":{"c":"v7"}}';

-- name: json_filter_exists
SELECT count(*) FILTER (WHERE j ? 'a'), count(*) FILTER (WHERE j ?| ARRAY['q', 'n']), count(*) FILTER (WHERE j ?& ARRAY['a', 'tags']), count(*) FILTER (WHERE j -> 'tags' ? 't3') FROM t_json;

-- name: json_path
SELECT count(*) FILTER (WHERE j @? '$.tags[*] ? (@ == "t5")'), count(*) FILTER (WHERE j @@ '$.a > 30'), count(jsonb_path_query_first(j, '$.b.c')) FROM t_json;

-- name: json_agg_numeric
SELECT j ->> 'n' AS n, count(*), sum((j ->> 'a')::int), avg((j -> 'a')::numeric) FROM t_json WHERE jsonb_typeof(j) = 'object' GROUP BY 1;

-- name: json_group_type
SELECT jsonb_typeof(j), j IS NULL, count(*) FROM t_json GROUP BY 1, 2;

-- name: json_sort
-- order: yes
SELECT j, id FROM t_json WHERE id < 1500 ORDER BY j, id;

-- name: json_expand
SELECT e.key, jsonb_typeof(e.value), count(*) FROM t_json t, jsonb_each(t.j) e WHERE jsonb_typeof(t.j) = 'object' GROUP BY 1, 2;

-- name: json_plain
SELECT id, js ->> 'y', (js ->> 'z')::int, json_typeof(js) FROM t_json WHERE js ->> 'z' = '7';

-- name: json_build
SELECT jsonb_build_object('id', id, 'q', qty, 'd', d, 'ts', tl), to_json(ok), jsonb_strip_nulls(jsonb_build_object('s', status, 'n', note)) FROM fact WHERE flags < 250;

-- name: json_product_attrs
SELECT attrs ->> 'col' AS col, (attrs ->> 'opt')::bool AS opt, count(*), sum((attrs ->> 'size')::int), max(attrs #>> '{dim,1}') FROM product GROUP BY 1, 2;

-- name: json_record
SELECT r.a, r.n, count(*) FROM t_json t, jsonb_to_record(t.j) AS r(a int, n int) WHERE t.j @> '{}' AND jsonb_typeof(t.j) = 'object' GROUP BY 1, 2;

-- name: comp_fields
SELECT id, (p).name, ((p).home).no, ((p).home).zip, (p).home FROM t_misc WHERE ((p).home).no = 33;

-- name: comp_null_tests
SELECT count(*) FILTER (WHERE p IS NULL), count(*) FILTER (WHERE p IS NOT NULL), count(*) FILTER (WHERE (p).home IS NULL), count(*) FILTER (WHERE p IS DISTINCT FROM NULL) FROM t_misc;

-- name: comp_compare
SELECT count(*), min(id) FROM t_misc WHERE (p).home = ROW('St 3', 40, '00040')::address OR p > ROW('P39', NULL, NULL)::person;

-- name: comp_expand
SELECT (p).*, id FROM t_misc WHERE id % 200 = 3;

-- name: comp_sort
-- order: yes
SELECT p, id FROM t_misc WHERE id % 11 = 0 ORDER BY p, id;

-- name: enum_compare
SELECT count(*) FILTER (WHERE m > 'meh'), count(*) FILTER (WHERE m = 'zen'), min(m), max(m), count(DISTINCT m) FROM t_misc;

-- name: enum_array
SELECT m, m = ANY (enum_range('bad'::mood, 'good'::mood)), enum_first(m), count(*) FROM t_misc GROUP BY m;

-- name: domain_use
SELECT sc, max(dom), count(*), sum(dom) FROM t_misc WHERE dom % 5 = 0 GROUP BY sc;

-- name: domain_cast
SELECT id, (id % 90 + 1)::posint, ('AB-' || id)::shortcode, l::int[] FROM t_arr WHERE id % 33 = 0;

-- name: net_ops
SELECT id, host(ip), masklen(net), ip << '10.1.0.0/16', network(ip), set_masklen(ip, 8), net >> '192.168.7.9'::inet, mac, trunc(mac) FROM t_misc WHERE id % 70 = 2 OR ip <<= '10.2.5.0/24';

-- name: bits_ops
SELECT id, b8 & B'11110000', b8 | B'00000001', ~b8, b8 << 2, vb || B'1', length(vb), b8::int, get_bit(b8, 3) FROM t_misc WHERE id % 45 = 9;

-- name: geo_ops
SELECT id, pt, bx, pt <-> point(0, 0), area(bx), center(bx), bx @> point(3, 3) FROM t_misc WHERE pt <@ box(point(10, 10), point(20, 20));

-- name: bytea_group
SELECT by, count(*), min(encode(by, 'hex')), sha256(by) FROM t_misc GROUP BY by;

-- name: money_ops
SELECT cash, cash * 2, cash::numeric, count(*) FROM t_misc WHERE cash > 4900::money GROUP BY cash;

-- name: lsn_ops
SELECT id, lsn, lsn - '0/100'::pg_lsn, lsn + 16 FROM t_misc WHERE lsn BETWEEN '0/4000' AND '0/4400';

-- name: num_specials_rows
SELECT id, n, n2, f8, f4, i2, i8 FROM t_num WHERE id % 40 < 7 OR id % 30 < 8;

-- name: num_compare_specials
SELECT count(*) FILTER (WHERE n = 'NaN'), count(*) FILTER (WHERE n > 'Infinity'), count(*) FILTER (WHERE f8 > 'Infinity'), count(*) FILTER (WHERE f8 = -0.0), count(*) FILTER (WHERE f4 <> f4), count(*) FILTER (WHERE n BETWEEN -1 AND 1) FROM t_num;

-- name: num_trig_scale
SELECT id, n2 * n2, n2 / 7, round(n2, -2), trim_scale(n2), min_scale(n2), gcd(i2, 12), lcm(i2::int, 4) FROM t_num WHERE id % 33 = 5;

-- name: num_cast_chain
SELECT id, n2::int8, f8::numeric, f4::float8, i8::numeric * 10, (i2::int4 << 3)::text, n2::float8 FROM t_num WHERE f8 BETWEEN 1 AND 1e6 AND id % 9 = 2;

-- ===========================================================================
-- Index paths, views, row security, sampling
-- ===========================================================================

-- name: idx_only_count
-- set: enable_seqscan = off
SELECT count(*) FROM fact WHERE cust_id BETWEEN 100 AND 2000;

-- name: idx_scan_range
-- set: enable_seqscan = off
-- set: enable_bitmapscan = off
SELECT sum(amount), count(*) FROM fact WHERE d BETWEEN '2022-01-01' AND '2022-06-30' AND status = 'paid';

-- name: idx_bitmap
-- set: enable_seqscan = off
-- set: enable_indexscan = off
SELECT count(*), sum(qty) FROM fact WHERE cust_id BETWEEN 10 AND 600 AND ok;

-- name: idx_bitmap_and_or
-- set: enable_seqscan = off
SELECT count(*), sum(id) FROM fact WHERE (cust_id < 300 AND d < '2021-01-01') OR cust_id = 1234;

-- name: idx_brin
-- set: enable_seqscan = off
SELECT count(*), min(id), max(id) FROM fact WHERE ts BETWEEN '2022-01-01 00:00:00+00' AND '2022-02-01 00:00:00+00';

-- name: idx_partial
-- set: enable_seqscan = off
SELECT store_id, count(*), sum(amount) FROM fact WHERE status = 'void' AND store_id < 20 GROUP BY store_id;

-- name: idx_order_merge
-- order: yes
-- set: enable_seqscan = off
-- set: enable_sort = off
SELECT id, qty FROM fact WHERE id BETWEEN 5000 AND 9000 AND ok ORDER BY id;

-- name: idx_point
SELECT * FROM fact WHERE id = 123456;

-- name: idx_gin
-- set: enable_seqscan = off
SELECT count(*), min(id) FROM t_json WHERE j @> '{"a":6}';

-- name: idx_min_max
SELECT min(id), max(id), min(cust_id), max(cust_id) FROM fact;

-- name: view_simple
SELECT prod_id, count(*), sum(amount) FROM v_paid WHERE d >= '2024-01-01' GROUP BY prod_id;

-- name: view_agg
SELECT * FROM v_cat_totals WHERE n > 100;

-- name: view_join_view
SELECT v.category, count(*) FROM v_cat_totals v JOIN product p USING (category) JOIN v_paid q USING (prod_id) GROUP BY v.category;

-- name: view_barrier
SELECT cust_id, credit FROM v_barrier WHERE credit > 15000 AND f_plpgsql_safe(cust_id) % 3 = 0;

-- name: view_barrier_leaky
SELECT region_id, count(*), sum(credit) FROM v_barrier WHERE 100 / (cust_id + 1) >= 0 AND name LIKE '%7' GROUP BY region_id;

-- name: view_barrier_join
SELECT b.region_id, count(*), sum(f.amount) FROM v_barrier b JOIN fact f USING (cust_id) GROUP BY b.region_id;

-- name: matview_scan
SELECT status, sum(n), sum(total), max(top) FROM mv_daily GROUP BY status;

-- name: matview_join
SELECT c.y, c.m, sum(m.n) FROM mv_daily m JOIN calendar c USING (d) GROUP BY 1, 2;

-- name: rls_view
SELECT owner_name, count(*), sum(secret), min(id) FROM v_rls GROUP BY owner_name;

-- name: rls_view_rows
SELECT id, secret FROM v_rls WHERE secret % 10 = 3;

-- name: rls_view_join
SELECT r.owner_name, count(*), sum(f.qty) FROM v_rls r JOIN fact f ON f.id = r.id GROUP BY 1;

-- name: rls_direct
-- role: corpus_reader
SELECT owner_name, visible, count(*), sum(secret) FROM t_rls GROUP BY 1, 2;

-- name: rls_direct_function
-- role: corpus_reader
SELECT count(*), sum(f_plpgsql_safe(secret)) FROM t_rls WHERE id % 2 = 1;

-- name: rls_invoker_view
-- role: corpus_reader
SELECT count(*), sum(secret), current_user FROM v_invoker;

-- name: role_plain_table
-- role: corpus_reader
SELECT status, count(*), max(current_user::text) FROM fact GROUP BY status;

-- name: sample_bernoulli
SELECT count(*), sum(id) FROM fact TABLESAMPLE BERNOULLI (10) REPEATABLE (42);

-- name: sample_system
SELECT status, count(*), sum(qty) FROM fact TABLESAMPLE SYSTEM (25) REPEATABLE (7) GROUP BY status;

-- name: sample_join
SELECT s.region_id, count(*) FROM fact f TABLESAMPLE BERNOULLI (5) REPEATABLE (3) JOIN store s USING (store_id) GROUP BY 1;

-- name: catalog_join
SELECT c.relname, s.n FROM pg_class c JOIN (SELECT tableoid AS o, count(*) AS n FROM ev GROUP BY tableoid) s ON s.o = c.oid;

-- ===========================================================================
-- Mixed
-- ===========================================================================

-- name: mix_pivot
SELECT store_id, sum(amount) FILTER (WHERE extract(year FROM d) = 2020) AS y20, sum(amount) FILTER (WHERE extract(year FROM d) = 2021) AS y21, sum(amount) FILTER (WHERE extract(year FROM d) = 2022) AS y22 FROM fact GROUP BY store_id;

-- name: mix_cohort
SELECT first_year, y, count(DISTINCT cust_id) FROM (SELECT cust_id, extract(year FROM d) AS y, min(extract(year FROM d)) OVER (PARTITION BY cust_id) AS first_year FROM fact WHERE cust_id > 12 AND d IS NOT NULL) s GROUP BY 1, 2;

-- name: mix_top_per_group
SELECT category, name, n FROM (SELECT p.category, p.name, count(*) AS n, row_number() OVER (PARTITION BY p.category ORDER BY count(*) DESC, p.prod_id) AS rn FROM fact f JOIN product p USING (prod_id) GROUP BY p.prod_id) s WHERE rn <= 2;

-- name: mix_histogram
SELECT width_bucket(price, 0, 2703, 30) AS b, count(*), min(price), max(price) FROM fact WHERE price IS NOT NULL GROUP BY 1;

-- name: mix_gap
SELECT count(*) FROM calendar c WHERE NOT EXISTS (SELECT 1 FROM fact f WHERE f.d = c.d AND f.status = 'void' AND f.qty > 60);

-- name: mix_nested_case_agg
SELECT CASE WHEN n > 1000 THEN 'hot' WHEN n > 40 THEN 'warm' ELSE 'cold' END AS temp, count(*), sum(n) FROM (SELECT prod_id, count(*) AS n FROM fact GROUP BY prod_id) s GROUP BY 1;

-- name: mix_typed_constants
SELECT count(*), sum(amount) FROM fact WHERE store_id = 12::int8 AND amount > '100.5'::numeric AND d > '2020-05-05'::date AND ok = 'yes'::bool AND price < 1e3::float4 AND status = 'paid'::varchar;

-- name: mix_many_targets
SELECT sum(qty), sum(qty + 1), sum(qty + 2), sum(qty + 3), sum(qty * 2), sum(qty * 3), count(qty), avg(qty), sum(flags), sum(flags + qty), max(flags), min(flags), sum(id), sum(id % 7), sum(id % 11), sum(store_id), max(store_id), count(DISTINCT store_id), sum(amount), sum(amount + 1), sum(-amount), avg(amount + qty) FROM fact;

-- name: mix_wide_group_text
SELECT status, code, left(note, 1), ok, count(*), string_agg(DISTINCT store_id::text, ',' ORDER BY store_id::text) FROM fact WHERE flags < 4000 GROUP BY 1, 2, 3, 4;

-- name: mix_join_order_limit
-- order: yes
SELECT r.name, c.name, sum(f.amount) AS s FROM fact f JOIN customer c USING (cust_id) LEFT JOIN region r ON r.region_id = c.region_id WHERE f.status IN ('paid', 'shipped') GROUP BY r.name, c.cust_id, c.name ORDER BY s DESC NULLS LAST, c.cust_id LIMIT 25 OFFSET 5;

-- name: mix_union_of_joins
SELECT 'store' AS src, s.region_id, sum(f.amount) FROM fact f JOIN store s USING (store_id) GROUP BY 2 UNION ALL SELECT 'cust', c.region_id, sum(f.amount) FROM fact f JOIN customer c USING (cust_id) GROUP BY 2;

-- name: mix_bigger_result
SELECT id, cust_id, amount, status, note FROM fact WHERE qty BETWEEN 10 AND 25;

-- name: mix_spill_hashagg
-- set: work_mem = 128kB
SELECT count(*), sum(n), max(s) FROM (SELECT note, cust_id, count(*) AS n, sum(qty) AS s FROM fact GROUP BY note, cust_id) x;

-- name: mix_spill_sort
-- order: yes
-- set: work_mem = 128kB
SELECT note, id FROM fact WHERE qty > 85 ORDER BY note DESC NULLS LAST, id;

-- name: mix_jit_expressions
-- set: jit = on
-- set: jit_above_cost = 0
SELECT count(*), sum(qty * 2 + flags % 7), avg(price * rate) FROM fact WHERE (qty + store_id) % 3 = 1 OR note LIKE '%5';

-- name: mix_format_strings
SELECT format('%s:%s', status, count(*)), array_to_string(array_agg(DISTINCT qty ORDER BY qty), ' ') FROM fact WHERE flags < 1000 GROUP BY status;
