//! Counts what clients ask, from the bytes they send.

/// Follows the requests of one connection, in whatever pieces they come. Which protocol it is shows
/// in the first byte.
#[derive(Debug, Default)]
pub(super) struct Requests {
    protocol: Protocol,
    /// Bytes of the message at hand that are to be passed over.
    skip: usize,
    /// The beginning of a message, until it says how long it is.
    head: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Protocol {
    /// Nothing has come yet.
    #[default]
    Unknown,
    /// Redis, with the words of the command that are still to come.
    Redis { words: usize },
    /// Postgres before its startup message, which has no type.
    PostgresStartup,
    /// Postgres.
    Postgres,
    /// Something else, TLS for instance.
    Opaque,
}

/// What was complete in some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Commands of Redis.
    pub(super) commands: u64,
    /// Messages of Postgres that the server answers with `ReadyForQuery`.
    pub(super) round_trips: u64,
}

impl Requests {
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Counted {
        let mut counted = Counted::default();
        while let Some(first) = bytes.first() {
            if self.protocol == Protocol::Opaque {
                break;
            }
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            if self.head.is_empty() {
                self.begin(*first);
            }
            self.head.push(*first);
            bytes = &bytes[1..];
            self.advance(&mut counted);
        }
        counted
    }

    /// Looks at the first byte of a message.
    fn begin(&mut self, first: u8) {
        self.protocol = match (self.protocol, first) {
            (Protocol::Unknown, b'*') => Protocol::Redis { words: 0 },
            // The length of a startup message, which is below 2^24.
            (Protocol::Unknown | Protocol::PostgresStartup, 0) => Protocol::PostgresStartup,
            (Protocol::Unknown | Protocol::PostgresStartup, _) => Protocol::Opaque,
            (known, _) => known,
        };
    }

    /// Looks at the head after each byte of it.
    fn advance(&mut self, counted: &mut Counted) {
        let done = match self.protocol {
            Protocol::Redis { words } => self.redis(words, counted),
            Protocol::PostgresStartup => self.postgres_startup(),
            Protocol::Postgres => self.postgres(counted),
            Protocol::Unknown | Protocol::Opaque => true,
        };
        if done {
            self.head.clear();
        }
    }

    /// `*2\r\n`, then twice `$4\r\n` and four bytes and `\r\n`.
    fn redis(&mut self, words: usize, counted: &mut Counted) -> bool {
        let Some(line) = self.head.strip_suffix(b"\r\n") else { return false };
        let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.parse().ok());
        self.protocol = match (words, line[0], number) {
            (0, b'*', Some(words)) => Protocol::Redis { words },
            (1.., b'$', Some(length)) => {
                self.skip = length + 2;
                counted.commands += u64::from(words == 1);
                Protocol::Redis { words: words - 1 }
            }
            _ => Protocol::Opaque,
        };
        true
    }

    /// A length, which counts itself, and a code.
    fn postgres_startup(&mut self) -> bool {
        let [a, b, c, d, code @ ..] = self.head.as_slice() else { return false };
        let &[e, f, g, h] = code else { return false };
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        self.skip = length.saturating_sub(8);
        // After a question about encryption comes the startup message, if the answer was no.
        if !matches!(u32::from_be_bytes([e, f, g, h]), SSL_REQUEST | GSSENC_REQUEST) {
            self.protocol = Protocol::Postgres;
        }
        true
    }

    /// A type and a length, which counts itself and not the type.
    fn postgres(&mut self, counted: &mut Counted) -> bool {
        let &[kind, a, b, c, d] = self.head.as_slice() else { return false };
        self.skip = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(4);
        counted.round_trips += u64::from(matches!(kind, b'S' | b'Q'));
        true
    }
}

const SSL_REQUEST: u32 = 80_877_103;
const GSSENC_REQUEST: u32 = 80_877_104;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_commands_of_redis_in_any_pieces() {
        let bytes =
            b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$5\r\n*1\r\n*\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\n";
        assert_in_any_pieces(bytes, Counted { commands: 4, round_trips: 0 });
    }

    #[test]
    fn counts_round_trips_of_postgres_in_any_pieces() {
        let mut bytes = Vec::new();
        bytes.extend(message(None, &SSL_REQUEST.to_be_bytes()));
        bytes.extend(message(None, b"\0\x03\0\0user\0postgres\0\0"));
        bytes.extend(message(Some(b'Q'), b"SELECT 'S'\0"));
        bytes.extend(message(Some(b'P'), b"\0SSSS\0\0\0"));
        bytes.extend(message(Some(b'B'), b"QQ"));
        bytes.extend(message(Some(b'S'), b""));
        bytes.extend(message(Some(b'X'), b""));
        assert_in_any_pieces(&bytes, Counted { commands: 0, round_trips: 2 });
    }

    #[test]
    fn anything_else_is_not_looked_into() {
        assert_in_any_pieces(b"\x16\x03\x01*1\r\n$4\r\nPING\r\n", Counted::default());
        assert_in_any_pieces(b"PING\r\n*1\r\n$4\r\nPING\r\n", Counted::default());
    }

    fn message(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        kind.into_iter().chain(length.to_be_bytes()).chain(body.iter().copied()).collect()
    }

    fn assert_in_any_pieces(bytes: &[u8], expected: Counted) {
        for size in 1..=bytes.len() {
            let mut requests = Requests::default();
            let mut sum = Counted::default();
            for piece in bytes.chunks(size) {
                let counted = requests.read(piece);
                sum.commands += counted.commands;
                sum.round_trips += counted.round_trips;
            }
            assert_eq!(sum, expected, "in pieces of {size}");
        }
    }
}
