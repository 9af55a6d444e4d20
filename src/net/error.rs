//! What can go wrong on a link, and the cleaning of texts that come from libpq.
//!
//! Not here: raising. Callers decide whether a [`NetError`] costs a participant (the rule for
//! queries) or fails the statement (admin functions, through [`NetError::into_report`]).
//!
//! Invariant: no field of any value made here holds a password or a connection string.

use super::parameters::ConnectParameters;

/// Five characters of a SQLSTATE, as the server sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    pub fn from_text(text: &str) -> Option<SqlState> {
        let bytes: [u8; 5] = text.as_bytes().try_into().ok()?;
        let valid = bytes
            .iter()
            .all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        valid.then_some(SqlState(bytes))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("58000")
    }
}

/// An error report that the remote server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError {
    pub severity: String,
    pub sqlstate: SqlState,
    pub primary: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub context: Option<String>,
}

impl std::fmt::Display for RemoteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.primary)
    }
}

/// A failure of the link or of a statement sent over it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum NetError {
    #[error("could not establish connection")]
    TooManyFiles,
    #[error("all {most} links that parallel_replicas.max_links admits are in use")]
    TooManyLinks { most: u32 },
    #[error("out of memory")]
    OutOfMemory,
    #[error("invalid value for connection option \"{keyword}\"")]
    InvalidParameter { keyword: String },
    #[error("could not connect to replica: {message}")]
    Connect {
        message: String,
        /// Something accepted the connection; it failed later (authentication, database, TLS).
        reached: bool,
    },
    #[error("password is required")]
    PasswordNotUsed,
    #[error("connection lost: {message}")]
    Lost { message: String },
    #[error("message of {bytes} bytes is too large to send")]
    TooLarge { bytes: usize },
    #[error("connection is not ready for this request")]
    NotReady,
    #[error("timed out while {activity}")]
    TimedOut { activity: &'static str },
    #[error("{0}")]
    Remote(Box<RemoteError>),
}

impl NetError {
    /// The server's error code, if it sent one. Of a refusal to connect only [`Connection`]s that
    /// were started to tell it do.
    ///
    /// [`Connection`]: super::Connection
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            NetError::Remote(remote) => Some(remote.sqlstate.as_str()),
            NetError::Connect { message, .. } => sqlstate(message),
            _ => None,
        }
    }

    pub fn detail(&self) -> Option<String> {
        match self {
            NetError::TooManyFiles => {
                Some("There are too many open files on the local server.".into())
            }
            NetError::PasswordNotUsed => {
                Some("The replica did not ask for the password of the user mapping.".into())
            }
            NetError::Remote(remote) => remote.detail.clone(),
            _ => None,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            NetError::TooManyFiles => {
                Some("Raise max_files_per_process of the server or its \"ulimit -n\" limit.".into())
            }
            NetError::PasswordNotUsed => Some(
                "Change the replica's authentication method, or let a superuser set \
                 password_required to false in the user mapping."
                    .into(),
            ),
            NetError::Remote(remote) => remote.hint.clone(),
            _ => None,
        }
    }
}

/// The SQLSTATE in a server's refusal, as libpq words it when told to be verbose:
/// `FATAL:  57P03: the database system is starting up`.
fn sqlstate(message: &str) -> Option<&str> {
    message.split(' ').find_map(|word| {
        let code = word.strip_suffix(':')?;
        let shaped = code.len() == 5
            && code
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
            && code.bytes().any(|byte| byte.is_ascii_digit());
        shaped.then_some(code)
    })
}

/// Shortest secret that is masked in place. A shorter one would turn up in innocent words, and
/// masking those would tell what it is; then the whole text is withheld.
const SECRET_MASK_BYTES_MIN: usize = 4;
/// Longest text kept from libpq.
const TEXT_BYTES_MAX: usize = 1000;

/// Removes secrets and connection strings from a libpq text and makes one line of it.
pub fn redact(text: &str, parameters: &ConnectParameters) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for secret in parameters.secrets() {
        // The text has single spaces by now, so the secret is looked for in that form too.
        let folded = secret.split_whitespace().collect::<Vec<_>>().join(" ");
        for needle in [secret.as_ref(), folded.as_str()] {
            if needle.is_empty() || !line.contains(needle) {
                continue;
            }
            if needle.len() < SECRET_MASK_BYTES_MIN {
                return "message withheld because it may contain a password".into();
            }
            line = line.replace(needle, "***");
        }
    }
    line = mask_assignments(&line);
    line = mask_uris(&line);
    truncate(line)
}

/// Masks the value after `password=`, `sslpassword=` and the like.
fn mask_assignments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    // ASCII folding keeps byte offsets, which `to_lowercase` would not.
    while let Some(at) = rest.to_ascii_lowercase().find("password=") {
        let value_at = at + "password=".len();
        out.push_str(&rest[..value_at]);
        out.push_str("***");
        let value = &rest[value_at..];
        rest = match value.strip_prefix('\'') {
            Some(quoted) => quoted.split_once('\'').map_or("", |(_, tail)| tail),
            None => {
                let end = value.find([' ', '&', '"', ';', ',']).unwrap_or(value.len());
                &value[end..]
            }
        };
    }
    out.push_str(rest);
    out
}

/// Replaces connection URIs as a whole.
fn mask_uris(line: &str) -> String {
    let is_uri = |word: &str| {
        let word = word.to_ascii_lowercase();
        word.contains("postgres://") || word.contains("postgresql://")
    };
    let words = line
        .split(' ')
        .map(|word| if is_uri(word) { "***" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn truncate(mut line: String) -> String {
    if line.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX)
            .rev()
            .find(|&i| line.is_char_boundary(i))
            .unwrap_or(0);
        line.truncate(end);
        line.push_str("...");
    }
    line
}
