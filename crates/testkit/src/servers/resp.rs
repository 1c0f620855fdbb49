//! The least of a Redis client: a test looks at a server without the library that it tests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Failure;

/// What a Redis server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// A status, such as `OK`.
    Status(String),
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// Several answers.
    Array(Vec<Reply>),
    /// Nothing there.
    Nil,
    /// An error inside an [`Array`](Self::Array). One that stands alone is a [`Failure`].
    Error(String),
}

impl Reply {
    /// The number, or nothing for any other kind.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The status or the value as text, or nothing for any other kind.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Status(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// The answers of an array, or none for any other kind.
    #[must_use]
    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(replies) => replies,
            _ => &[],
        }
    }

    /// The value of a line `name:value`, as in `INFO` and `CLUSTER INFO`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<String> {
        let text = self.text()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }
}

/// A connection that speaks RESP2 and waits for each answer, for five seconds.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn open(address: SocketAddr) -> Result<Self, Failure> {
        let connected = || {
            let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            Ok(Self { stream: BufReader::new(stream) })
        };
        connected().map_err(Failure::io("connect"))
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Errors
    /// The server answers with an error, or not in time. After the latter the connection is of no
    /// use any more: the answer may still come.
    pub fn command(&mut self, words: &[&str]) -> Result<Reply, Failure> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes()).map_err(Failure::io("send"))?;
        match self.reply().map_err(Failure::io("receive"))? {
            Reply::Error(answer) => Err(Failure::Refused { answer }),
            reply => Ok(reply),
        }
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let malformed = || io::Error::other(format!("not RESP2: {line:?}"));
        let kind = line.chars().next().ok_or_else(malformed)?;
        let rest = line.get(1..).ok_or_else(malformed)?.trim_end();
        let number = || rest.parse::<i64>().map_err(|_| malformed());
        Ok(match kind {
            '+' => Reply::Status(rest.to_owned()),
            '-' => Reply::Error(rest.to_owned()),
            ':' => Reply::Integer(number()?),
            // A negative length is how nothing is written.
            '$' => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bulk(bytes)
                }
                Err(_) => Reply::Nil,
            },
            '*' => match usize::try_from(number()?) {
                Ok(length) => {
                    Reply::Array((0..length).map(|_| self.reply()).collect::<io::Result<_>>()?)
                }
                Err(_) => Reply::Nil,
            },
            _ => return Err(malformed()),
        })
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
