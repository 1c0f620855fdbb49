//! Bytes that no well-meant client would send: frames of HTTP/2 as they are on the wire.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The beginning of a connection, with this much room for answers on every stream.
pub(crate) fn begin(window: u32) -> Vec<u8> {
    let mut setting = vec![0, 4];
    setting.extend(window.to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// Fields, none of them indexed or compressed.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            // A length that does not fit seven bits goes on in the next byte.
            match u8::try_from(text.len()) {
                Ok(length @ ..127) => bytes.push(length),
                _ => {
                    bytes.push(127);
                    let mut rest = text.len() - 127;
                    while rest >= 128 {
                        bytes.push(u8::try_from(rest % 128).expect("small") | 128);
                        rest /= 128;
                    }
                    bytes.push(u8::try_from(rest).expect("small"));
                }
            }
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// The head of a call.
pub(crate) fn head(method: &str) -> Vec<u8> {
    fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &format!("/throttlekit.v1.RateLimiter/{method}")),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// A message with its length before it.
pub(crate) fn framed(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(message.encoded_len()).expect("short").to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes
}

/// A whole call on a stream, in frames of at most 16 KiB.
pub(crate) fn call(stream: u32, method: &str, message: &[u8]) -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &head(method));
    for part in message.chunks(16 << 10) {
        bytes.extend(frame(DATA, 0, stream, part));
    }
    bytes.extend(frame(DATA, END_STREAM, stream, b""));
    bytes
}
