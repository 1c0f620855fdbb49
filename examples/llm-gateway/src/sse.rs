//! Server-sent events, cut out of bytes as they arrive.

use bytes::{Bytes, BytesMut};

/// One event: a few lines and an empty one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The lines as they came.
    pub(crate) raw: Bytes,
    /// What its `data:` lines say; `None` for a comment.
    pub(crate) data: Option<String>,
}

/// Cuts events out of what arrives.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: BytesMut,
    /// Where the line begins that is not known to be whole.
    line: usize,
}

impl Parser {
    /// An event is not longer than this.
    pub(crate) const EVENT_MAX: usize = 1 << 20;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether what has arrived is too long to be an event. Asked when there is no next one.
    pub(crate) fn is_too_long(&self) -> bool {
        self.buffer.len() > Self::EVENT_MAX
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        while let Some(length) = self.buffer[self.line..].iter().position(|byte| *byte == b'\n') {
            let line = &self.buffer[self.line..self.line + length];
            let is_empty = line.is_empty() || line == b"\r";
            self.line += length + 1;
            if is_empty {
                let raw = self.buffer.split_to(std::mem::take(&mut self.line)).freeze();
                return Some(Event { data: data_of(&raw), raw });
            }
        }
        None
    }
}

/// The text of an event's `data:` lines.
fn data_of(raw: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(raw);
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let data: Vec<&str> = data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    (!data.is_empty()).then(|| data.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let text =
            ": hello\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:b\ndata: c\n\ndata: [DONE]\n\n";
        let expected = [None, Some("{\"a\":1}"), Some("b\nc"), Some("[DONE]")];
        for size in 1..=text.len() {
            let (mut parser, mut events) = (Parser::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                parser.push(piece);
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let data: Vec<_> = events.iter().map(|event| event.data.as_deref()).collect();
            assert_eq!(data, expected, "in pieces of {size}");
            let raw: Vec<u8> = events.iter().flat_map(|event| event.raw.to_vec()).collect();
            assert_eq!(raw, text.as_bytes(), "nothing is lost");
        }
    }

    #[test]
    fn an_event_without_an_end_is_too_long_at_some_point() {
        let mut parser = Parser::default();
        parser.push(&vec![b'x'; Parser::EVENT_MAX + 1]);
        assert_eq!(parser.next(), None);
        assert!(parser.is_too_long());
    }
}
