//! Keys that leave the process only as codes.
//!
//! A key is often an identity: a user, an address, a token. With a secret, the store sees a code
//! instead, which whoever reads the store cannot turn back and cannot test guesses against.
//!
//! # Guarantee
//! - The code is HMAC-SHA-256 of the key under the secret, of which 128 bits are kept: two of n
//!   keys share a limit with a chance of about n²/2^129.
//! - Every instance with the same secret counts the same keys. Another secret counts anew.
//! - Nothing shows the secret, and it has at least 32 bytes.
//!
//! What a code does not hide: that two requests have the same key, and how often it comes.
//!
//! # Proven by
//! The tests below.

use std::fmt;

use admittance::budget::{Accounts, Booked, Charge, Entry};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, FuseAsk, Fuses, Group, Limit, Many, Op,
    Store, StoreError,
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret that keys are coded with.
#[derive(Clone)]
pub struct KeySecret(Hmac<Sha256>);

/// A secret that is too short to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key secret has {length} bytes; it needs at least {}, e.g. from `openssl rand -hex 32`",
    KeySecret::BYTES_MIN
)]
pub struct SecretTooShort {
    /// How many bytes it has.
    pub length: usize,
}

impl KeySecret {
    /// The fewest bytes of a secret.
    pub const BYTES_MIN: usize = 32;

    /// A secret of these bytes. A line end after them does not count: files have one.
    ///
    /// # Errors
    /// Fewer than [`BYTES_MIN`](Self::BYTES_MIN).
    pub fn new(bytes: &[u8]) -> Result<Self, SecretTooShort> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let too_short = SecretTooShort { length: bytes.len() };
        if bytes.len() < Self::BYTES_MIN {
            return Err(too_short);
        }
        // It takes keys of any length.
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| too_short)
    }

    fn code(&self, key: &[u8]) -> [u8; CODE_BYTES] {
        let mut mac = self.0.clone();
        mac.update(key);
        let whole = mac.finalize().into_bytes();
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(&whole[..CODE_BYTES]);
        code
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// A store that sees codes instead of keys.
#[derive(Debug)]
pub struct Coded<S> {
    store: S,
    secret: KeySecret,
}

impl<S> Coded<S> {
    /// `store`, behind this secret.
    pub const fn new(store: S, secret: KeySecret) -> Self {
        Self { store, secret }
    }
}

impl<S: Store> Store for Coded<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let key = self.secret.code(op.key);
        self.store.apply(Op { key: &key, ..op }).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        let codes: Vec<_> = many.keys.iter().map(|key| self.secret.code(key)).collect();
        let keys: Vec<&[u8]> = codes.iter().map(<[u8; CODE_BYTES]>::as_slice).collect();
        self.store.check_many(Many { keys: &keys, ..many }).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let codes: Vec<_> = group.limits.iter().map(|limit| self.secret.code(limit.key)).collect();
        let coded = group.limits.iter().zip(&codes);
        let limits: Vec<Limit<'_>> =
            coded.map(|(limit, code)| Limit { key: code, ..*limit }).collect();
        self.store.several(Group { limits: &limits, ..group }).await
    }
}

impl<S: Accounts> Accounts for Coded<S> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let codes: Vec<_> =
            entry.charges.iter().map(|charge| self.secret.code(charge.key)).collect();
        let coded = entry.charges.iter().zip(&codes);
        let charges: Vec<Charge<'_>> =
            coded.map(|(charge, code)| Charge { key: code, ..*charge }).collect();
        self.store.book(Entry { charges: &charges, ..entry }).await
    }
}

impl<S: Fuses> Fuses for Coded<S> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        let limits = ask.limits.iter().map(|limit| limit.key);
        let charges = ask.entry.charges.iter().map(|charge| charge.key);
        let codes: Vec<_> = limits.chain(charges).map(|key| self.secret.code(key)).collect();
        let (of_limits, of_charges) = codes.split_at(ask.limits.len());
        let limits = ask.limits.iter().zip(of_limits);
        let limits: Vec<Limit<'_>> =
            limits.map(|(limit, code)| Limit { key: code, ..*limit }).collect();
        let charges = ask.entry.charges.iter().zip(of_charges);
        let charges: Vec<Charge<'_>> =
            charges.map(|(charge, code)| Charge { key: code, ..*charge }).collect();
        let entry = Entry { charges: &charges, ..ask.entry };
        self.store.fuse(FuseAsk { limits: &limits, entry, ..ask }).await
    }
}

/// Half of a SHA-256: enough that two keys do not meet by chance.
const CODE_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use admittance::{Action, Builtin, Cost, ManualClock, Memory, Span, Window};

    use super::*;

    /// Remembers the keys that reach it.
    struct Seen {
        memory: Memory<ManualClock>,
        keys: Mutex<Vec<Vec<u8>>>,
    }

    impl Seen {
        fn note(&self, key: &[u8]) {
            self.keys.lock().expect("no panic holds it").push(key.to_vec());
        }
    }

    impl Store for Seen {
        async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
            self.note(op.key);
            self.memory.apply(op).await
        }

        async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
            many.keys.iter().for_each(|key| self.note(key));
            self.memory.check_many(many).await
        }

        async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
            group.limits.iter().for_each(|limit| self.note(limit.key));
            self.memory.several(group).await
        }
    }

    #[test]
    fn the_code_is_the_first_half_of_the_standard_one() {
        // RFC 4231, test case 6: a key of 131 bytes of 0xaa.
        let secret = KeySecret::new(&[0xaa; 131]).expect("long enough");
        let code = secret.code(b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(code[..8], [0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f]);
        assert_eq!(code[8..], [0x0d, 0x8a, 0x26, 0xaa, 0xcb, 0xf5, 0xb7, 0x7f]);
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_shown() {
        assert_eq!(KeySecret::new(&[7; 31]).expect_err("short").length, 31);
        assert_eq!(KeySecret::new(b"0123456789012345678901234567890\n").expect_err("s").length, 31);
        let secret = KeySecret::new(b"01234567890123456789012345678901\r\n").expect("32 bytes");
        assert!(!format!("{secret:?}").contains('0'));
        let same = KeySecret::new(b"01234567890123456789012345678901").expect("32 bytes");
        assert_eq!(secret.code(b"k"), same.code(b"k"), "a line end does not count");
    }

    #[tokio::test]
    async fn no_key_reaches_the_store_and_the_same_are_the_same() {
        let secret = KeySecret::new(&[1; 32]).expect("32 bytes");
        let memory = Memory::new(ManualClock::default());
        let store = Coded::new(Seen { memory, keys: Mutex::default() }, secret);
        let strategy = Builtin::from(Window::fixed(3, Span::from_secs(60)).expect("in range"));
        let (policy, strategy, cost) = ("p", &strategy, Cost::ONE);
        let op = Op { policy, strategy, key: b"ann", action: Action::Check(cost) };
        let first = store.apply(op).await.expect("an answer");
        assert_eq!(first.decision().expect("a decision").remaining, 2);
        let many = Many { policy, strategy, keys: &[b"bob", b"ann"], cost };
        let many = store.check_many(many).await.expect("an answer");
        assert_eq!((many.decisions[0].remaining, many.decisions[1].remaining), (2, 1));
        let limits = [Limit { policy, strategy, key: b"ann", cost }];
        let group = Group { combine: admittance::Combine::All, limits: &limits };
        let several = store.several(group).await.expect("an answer").several;
        assert_eq!(several.decision.remaining, 0);
        let keys = store.store.keys.lock().expect("no panic holds it").clone();
        assert!(keys.iter().all(|key| key.len() == CODE_BYTES), "{keys:?}");
        assert_eq!((&keys[0], &keys[0]), (&keys[2], &keys[3]));
        assert_ne!(keys[0], keys[1]);
    }

    #[tokio::test]
    async fn accounts_see_codes_too_and_two_keys_stay_two() {
        use admittance::Cadence;
        use admittance::budget::{Act, Budget};

        let store = Memory::new(ManualClock::default());
        let secret = KeySecret::new(&[7; 32]).expect("long enough");
        let coded = Coded::new(std::sync::Arc::new(store), secret);
        let budget = Budget::new(9, Cadence::every(Span::from_secs(60))).expect("exact");
        for (key, units) in [(b"ann", 4), (b"bob", 3)] {
            let charges = [Charge { policy: "p", budget: &budget, key, units }];
            let entry = Entry { charges: &charges, act: Act::Debit(None) };
            let booked = coded.book(entry).await.expect("memory");
            assert_eq!(booked.together.decision.remaining, 9 - units);
        }
        let charges = [Charge { policy: "p", budget: &budget, key: b"ann", units: 0 }];
        let plain = Entry { charges: &charges, act: Act::Look };
        let booked = coded.store.book(plain).await.expect("memory");
        assert_eq!(booked.together.decision.remaining, 9, "nobody is known by the key itself");
    }
}
