//! Records what a real coordinator says to a real replica, so that tests can say it again, changed.
//!
//! A man in the middle between the two: it passes everything on and keeps the coordinator's bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use parallel_replicas_core::frame::{self, Begin, Mac, ToReplica};
use postgres::Client;

use crate::cluster::{Cluster, PRIMARY};
use crate::rogue::PROTOCOL_3_0;
use crate::wait::{SOON, wait_for};

/// A Begin as it went over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The code that went with it, for one nonce.
    pub mac: Mac,
    /// The encoded [`Begin`].
    pub body: Vec<u8>,
}

impl Recorded {
    /// What it says.
    pub fn begin(&self) -> Begin {
        frame::decode_body(&self.body).expect("a real coordinator's frames are whole")
    }
}

type Streams = Arc<Mutex<Vec<Vec<u8>>>>;

/// A recorder before one standby.
pub struct Recorder {
    streams: Streams,
    client: Client,
}

impl Recorder {
    /// Registers itself as the only replica of cluster `recorded`, before the standby `node`.
    #[track_caller]
    pub fn start(cluster: &Cluster, node: usize) -> Self {
        let recorder = Self::start_before(cluster, cluster.port(node));
        cluster.wait_caught_up(node);
        recorder
    }

    /// The same, before any server.
    #[track_caller]
    pub fn start_before(cluster: &Cluster, upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let streams = Streams::default();
        let recorded = Arc::clone(&streams);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                pass_on(client, upstream, &recorded);
            }
        });
        let mut client = cluster.connect(PRIMARY);
        client
            .batch_execute(&format!(
                "SELECT parallel_replicas.add_replica('recorder', '127.0.0.1', {port}, 'recorded');
                 SET cluster_for_parallel_replicas = 'recorded';
                 SET enable_parallel_replicas = 2; SET parallel_replicas.links_per_replica = 1;
                 SET parallel_replicas.granule_blocks = 1;
                 SET max_parallel_workers_per_gather = 0"
            ))
            .expect("a replica can be registered");
        Self { streams, client }
    }

    /// Lets the session connect, by a query over `table` that takes about a second; after that its
    /// queries can leave all work to the replica, which they then have at once.
    #[track_caller]
    pub fn warm_up(&mut self, table: &str) {
        let query =
            format!("SELECT count(*) FROM {table} AS t WHERE length(repeat(t.name, 20000)) > 0");
        wait_for(SOON, "a coordinator begins", || {
            self.run("SET parallel_replicas_local_plan = on");
            self.run(&query);
            self.begins().first().cloned()
        });
        self.run("SET parallel_replicas_local_plan = off");
    }

    #[track_caller]
    fn run(&mut self, statements: &str) {
        self.client
            .batch_execute(statements)
            .unwrap_or_else(|error| panic!("failed: {error:?}\n{statements}"));
    }

    /// The session whose queries are recorded.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs a query and returns the Begin that it sent.
    #[track_caller]
    pub fn record(&mut self, query: &str) -> Recorded {
        let before = self.begins().len();
        self.run(query);
        let begins = self.begins();
        assert!(
            begins.len() > before,
            "no replica was asked to work on {query}"
        );
        begins[before].clone()
    }

    /// All that was asked for so far.
    pub fn begins(&self) -> Vec<Recorded> {
        let streams = self.streams.lock().expect("no recorder panics");
        streams.iter().flat_map(|stream| begins(stream)).collect()
    }
}

fn pass_on(client: TcpStream, upstream: u16, streams: &Streams) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else {
        return;
    };
    let (Ok(client_reader), Ok(server_reader)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let index = {
        let mut streams = streams.lock().expect("no recorder panics");
        streams.push(Vec::new());
        streams.len() - 1
    };
    let streams = Arc::clone(streams);
    thread::spawn(move || {
        pump(client_reader, server, |bytes| {
            streams.lock().expect("no recorder panics")[index].extend_from_slice(bytes);
        });
    });
    thread::spawn(move || pump(server_reader, client, |_| {}));
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        see(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // Whoever is gone already does not mind.
    let _ = to.shutdown(Shutdown::Write);
}

/// All whole Begin frames of what one connection's client has sent so far.
fn begins(mut stream: &[u8]) -> Vec<Recorded> {
    let mut found = Vec::new();
    // Before the startup message, which has no type, libpq may ask for encryption.
    let mut started = false;
    loop {
        let kind_bytes = usize::from(started);
        let Some(header) = stream.get(..kind_bytes + 4) else {
            return found;
        };
        let length: [u8; 4] = header[kind_bytes..].try_into().expect("four bytes");
        let end = kind_bytes + u32::from_be_bytes(length) as usize;
        let Some(message) = stream.get(..end) else {
            return found;
        };
        let body = &message[kind_bytes + 4..];
        if !started {
            started = body.starts_with(&PROTOCOL_3_0.to_be_bytes());
        } else if message[0] == b'd'
            && let Ok(ToReplica::Begin { mac, body }) = frame::decode(body)
        {
            found.push(Recorded { mac, body });
        }
        stream = &stream[end..];
    }
}
