//! Messages as bytes, with a bound on how many fields one has.
//!
//! A repeated field of two bytes becomes a value of dozens, so a message within its bound in bytes
//! could still grow to many times that when it is decoded. Its fields are counted before.
//!
//! # Guarantee
//! A message of more than [`FIELDS_MAX`] fields is refused before anything is made of it. No
//! request of the contract has repeated fields in deeper messages, so what is made of one is
//! bounded by its bytes and by this.
//!
//! # Proven by
//! The tests below, with a decoder that does not count; `tests/contract.rs` for the depth.

use std::fmt;
use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The most fields of a message, repeated ones counted each time: the most keys of a batch, and
/// what else a message of the contract has.
pub const FIELDS_MAX: usize = 10_016;

/// How every call of the contract is encoded and decoded.
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> fmt::Debug for BoundedCodec<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundedCodec")
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstDecoder::default())
    }
}

/// Counts, and then decodes.
#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        bounded(message.chunk())?;
        self.0.decode(message)
    }
}

fn bounded(message: &[u8]) -> Result<(), Status> {
    // The least field has two bytes: nearly all messages are too short to have too many.
    if message.len() <= 2 * FIELDS_MAX {
        return Ok(());
    }
    match fields(message) {
        ..=FIELDS_MAX => Ok(()),
        fields => Err(Status::invalid_argument(format!(
            "the message has {fields} fields, more than a batch of the most keys; ask in several \
             calls"
        ))),
    }
}

/// How many there are, up to the first that cannot be read: there the decoder stops too.
fn fields(mut message: &[u8]) -> usize {
    let mut count = 0;
    while message.has_remaining() {
        let skipped = decode_key(&mut message).and_then(|(tag, wire_type)| {
            skip_field(wire_type, tag, &mut message, DecodeContext::default())
        });
        count += 1;
        if skipped.is_err() {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::CheckManyRequest;

    fn of_keys(keys: usize) -> Vec<u8> {
        let keys = vec![String::new(); keys];
        CheckManyRequest { policy: "api".into(), keys, cost: 1 }.encode_to_vec()
    }

    /// Whether a bound lets through what it must, and nothing that grows without end.
    fn is_bound(bounded: fn(&[u8]) -> Result<(), Status>) -> bool {
        let passes = |message: &[u8]| bounded(message).is_ok();
        let mut torn = of_keys(2 << 20);
        torn.push(0xff);
        passes(&of_keys(0))
            && passes(&of_keys(10_000))
            && !passes(&of_keys(FIELDS_MAX))
            && !passes(&of_keys(2 << 20))
            && !passes(&torn)
            // A few long keys are few fields.
            && passes(&[b"\x12\xa0\x8d\x06".as_slice(), &vec![b'x'; 100_000]].concat())
    }

    #[test]
    fn a_message_of_too_many_fields_is_refused_before_it_is_decoded() {
        assert!(is_bound(bounded));
        let said = bounded(&of_keys(2 << 20)).expect_err("refused");
        assert_eq!(said.code(), tonic::Code::InvalidArgument);
        assert!(said.message().contains("2097154 fields"), "{said:?}");
    }

    #[test]
    fn a_bound_that_does_not_count_is_caught() {
        assert!(!is_bound(|_| Ok(())));
        assert!(!is_bound(|message| match message.len() {
            ..=1_000 => Ok(()),
            _ => Err(Status::invalid_argument("long")),
        }));
        // What cannot be read to its end is not let through uncounted.
        assert!(!is_bound(|message| match CheckManyRequest::decode(message) {
            Ok(request) if request.keys.len() > 10_000 => Err(Status::invalid_argument("long")),
            _ => Ok(()),
        }));
    }
}
