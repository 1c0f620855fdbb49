//! Bodies of gRPC calls to every method that is described or served.
//!
//! # Guarantee
//! For any body, also one that is no frame, several, or half of one: the call is answered with a
//! status; a status of INTERNAL only where the body cannot be decoded, UNKNOWN never; no task of
//! the service panics, and an honest caller is answered afterwards.

use std::sync::OnceLock;

use admittance_proto::DESCRIPTORS;
use fastrand::Rng;
use http::HeaderMap;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};

use crate::Input;
use crate::live::{Live, NAMES, framed, grpc, live};

/// Feeds a method: the first byte says which, the second how the rest becomes a body.
pub fn target(bytes: &[u8]) {
    feed(live(), bytes);
}

/// The same of any service.
///
/// # Panics
/// If a property does not hold.
pub fn feed(live: &Live, bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let method = &methods()[input.below(methods().len())];
    let shape = input.byte();
    let body = body(shape, input.rest());
    live.runtime.block_on(async {
        let mut request = grpc(&method.path, body);
        if shape & 64 > 0 {
            request.headers_mut().insert("grpc-timeout", http::HeaderValue::from_static("10S"));
        }
        let answer = live.over_http2(request).await;
        let answer = answer.unwrap_or_else(|| panic!("{}: no answer at all", method.path));
        assert_eq!(answer.status(), 200, "{}", method.path);
        if answer.headers().contains_key("grpc-status") {
            judge(&method.path, answer.headers());
        } else if !method.is_endless {
            let answer = live.read(answer).await;
            judge(&method.path, &answer.trailers);
        }
        live.unharmed().await;
    });
}

fn judge(path: &str, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let status: Option<u32> = text("grpc-status").and_then(|status| status.parse().ok());
    let message = text("grpc-message").unwrap_or_default();
    match status {
        None => panic!("{path}: no status: {headers:?}"),
        Some(2) => panic!("{path}: unknown: {headers:?}"),
        Some(13) => {
            let is_body = ["decod", "protocol", "missing", "compress"];
            let is_body = is_body.iter().any(|word| message.to_lowercase().contains(word));
            assert!(is_body, "{path}: internal, {message:?}");
        }
        Some(status) => assert!(status <= 16, "{path}: status {status}"),
    }
}

fn body(shape: u8, message: &[u8]) -> Vec<u8> {
    match shape % 16 {
        // Whatever it is.
        12 => message.to_vec(),
        // Said to be compressed.
        13 => {
            let mut body = framed(message);
            body[0] = 1;
            body
        }
        // More than is there, or less.
        14 => {
            let mut body = framed(message);
            body[4] = body[4].wrapping_add(shape >> 4).wrapping_sub(8);
            body
        }
        // Two of them.
        15 => [framed(message), framed(message)].concat(),
        _ => framed(message),
    }
}

struct Method {
    path: String,
    /// What it takes, as far as is described here.
    asks: Option<DescriptorProto>,
    is_endless: bool,
}

/// Every method of our own contract, served or not, and those of others that are served with them.
fn methods() -> &'static [Method] {
    static METHODS: OnceLock<Vec<Method>> = OnceLock::new();
    METHODS.get_or_init(|| {
        let described = FileDescriptorSet::decode(DESCRIPTORS).expect("our own descriptors");
        let mut methods = Vec::new();
        for file in &described.file {
            for service in &file.service {
                for method in &service.method {
                    let (of, name) = (service.name(), method.name());
                    methods.push(Method {
                        path: format!("/{}.{of}/{name}", file.package()),
                        asks: message(&described, method.input_type()).cloned(),
                        is_endless: method.server_streaming(),
                    });
                }
            }
        }
        let others = [
            ("/grpc.health.v1.Health/Check", false),
            ("/grpc.health.v1.Health/Watch", true),
            ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", false),
            ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", false),
            ("/throttlekit.v1.RateLimiter/Nothing", false),
            ("/no.such.Service/Call", false),
        ];
        methods.extend(others.map(|(path, is_endless)| Method {
            path: path.into(),
            asks: None,
            is_endless,
        }));
        methods
    })
}

fn message<'a>(described: &'a FileDescriptorSet, name: &str) -> Option<&'a DescriptorProto> {
    described.file.iter().find_map(|file| {
        let within = name.strip_prefix('.')?.strip_prefix(file.package())?.strip_prefix('.')?;
        file.message_type.iter().find(|message| message.name() == within)
    })
}

/// Makes up a message of the method's own type: each field in its own form, mostly, with values
/// that are wrong in some way or other.
pub fn make(rng: &mut Rng) -> Vec<u8> {
    let nth = rng.usize(..methods().len());
    let method = &methods()[nth];
    let mut input = vec![u8::try_from(nth).unwrap_or(0), rng.u8(..12)];
    if let Some(asks) = &method.asks {
        fields(rng, asks, &mut input, 0);
    }
    input
}

fn fields(rng: &mut Rng, asks: &DescriptorProto, out: &mut Vec<u8>, depth: u8) {
    for field in &asks.field {
        let is_many = field.label() == Label::Repeated;
        let times = if is_many { rng.usize(..4) } else { usize::from(rng.u8(..8) > 0) };
        for _ in 0..times {
            let number = u64::from(field.number().unsigned_abs());
            match field.r#type() {
                Type::String | Type::Bytes => {
                    let text = text(rng);
                    varint(number << 3 | 2, out);
                    varint(text.len() as u64, out);
                    out.extend(text);
                }
                Type::Message => {
                    let mut inner = Vec::new();
                    if depth < 2 {
                        let described = FileDescriptorSet::decode(DESCRIPTORS).ok();
                        let asks =
                            described.as_ref().and_then(|all| message(all, field.type_name()));
                        asks.into_iter().for_each(|asks| fields(rng, asks, &mut inner, depth + 1));
                    }
                    varint(number << 3 | 2, out);
                    varint(inner.len() as u64, out);
                    out.extend(inner);
                }
                Type::Double => {
                    varint(number << 3 | 1, out);
                    let values = [0.0, -1.0, 1.5, 1e300, f64::NAN, f64::INFINITY, 5e-324];
                    out.extend(values[rng.usize(..values.len())].to_le_bytes());
                }
                _ => {
                    varint(number << 3, out);
                    varint(NUMBERS[rng.usize(..NUMBERS.len())], out);
                }
            }
        }
    }
}

fn text(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..12) {
        0 => vec![b'k'; rng.usize(..6_000)],
        1 => (0..rng.usize(..20)).map(|_| rng.u8(..)).collect(),
        2 => "schlüssel\u{0}\u{202e}".into(),
        3..=5 => b"k".to_vec(),
        _ => NAMES[rng.usize(..NAMES.len())].as_bytes().to_vec(),
    }
}

fn varint(value: u64, out: &mut Vec<u8>) {
    let mut left = value;
    while left > 127 {
        out.push(u8::try_from(left & 127).unwrap_or(0) | 128);
        left >>= 7;
    }
    out.push(u8::try_from(left).unwrap_or(0));
}

const NUMBERS: &[u64] =
    &[0, 1, 2, 5, 9, 100, 1_000, 70_000, (1 << 53) - 1, 1 << 53, (1 << 50) - 1, 1 << 63, u64::MAX];
