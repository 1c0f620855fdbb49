//! The names of leases: nobody can make one up, and every instance can tell whose it is.
//!
//! # Guarantee
//! - A name says which instance holds the lease, which lease it is, and carries 128 bits of an
//!   HMAC-SHA-256 over both under a secret that this instance drew when it started. Whoever does
//!   not know the secret guesses one with a chance of 2^-128 per try.
//! - Names are compared in constant time.
//! - A text that is not a name is none: reading it never fails in another way.
//!
//! # Proven by
//! The tests below.

use std::fmt;

use admittance::budget::LeaseKey;
use admittance::relay::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::service::Refusal;

/// A lease's name, as it was given out or as somebody claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseId {
    /// The instance that holds the lease.
    pub(crate) owner: u64,
    /// Which of its leases.
    pub(crate) lease: u64,
    code: [u8; CODE_BYTES],
}

/// What an instance signs names with.
#[derive(Clone)]
pub(crate) struct Signer {
    secret: Secret,
    mac: Hmac<Sha256>,
}

impl Signer {
    /// One with this secret.
    pub(crate) fn new(secret: Secret) -> Self {
        // A code under a key of any length.
        let mac = Hmac::new_from_slice(&secret).expect("every length will do");
        Self { secret, mac }
    }

    /// What others need to know names of this instance by.
    pub(crate) const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The name of a lease.
    pub(crate) fn sign(&self, owner: u64, lease: u64) -> LeaseId {
        let whole = self.signed(owner, lease).finalize().into_bytes();
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(&whole[..CODE_BYTES]);
        LeaseId { owner, lease, code }
    }

    /// Whether the name was given out by who has this secret.
    pub(crate) fn knows(&self, id: &LeaseId) -> bool {
        self.signed(id.owner, id.lease).verify_truncated_left(&id.code).is_ok()
    }

    fn signed(&self, owner: u64, lease: u64) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&owner.to_be_bytes());
        mac.update(&lease.to_be_bytes());
        mac
    }
}

impl LeaseId {
    /// The part of it that nobody can guess, which is what accounts know a reservation by.
    pub(crate) const fn code(&self) -> LeaseKey {
        LeaseKey(u128::from_be_bytes(self.code))
    }

    /// The name that a text claims to be.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_plain = text.len() == TEXT_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_plain {
            return None;
        }
        let number = |part: &str| u64::from_str_radix(part, 16).ok();
        let (owner, lease) = (number(&text[..16])?, number(&text[16..32])?);
        let code = u128::from_str_radix(&text[32..], 16).ok()?.to_be_bytes();
        Some(Self { owner, lease, code })
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = u128::from_be_bytes(self.code);
        write!(f, "{:016x}{:016x}{code:032x}", self.owner, self.lease)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

/// A number that nobody can guess.
pub(crate) fn fresh_lease() -> LeaseKey {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    LeaseKey(u128::from_be_bytes(bytes))
}

/// A lease as the wire writes it.
pub(crate) fn lease_text(lease: LeaseKey) -> String {
    format!("{:032x}", lease.0)
}

/// A lease as the wire wrote it.
///
/// # Errors
/// [`Refusal::LeaseMalformed`].
pub(crate) fn parse_lease(text: &str) -> Result<LeaseKey, Refusal> {
    let is_ours = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_ours.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(LeaseKey).ok_or(Refusal::LeaseMalformed)
}

/// The lease of a reservation, or of an admission with one, as the wire wrote it.
///
/// # Errors
/// [`Refusal::LeaseMalformed`].
pub(crate) fn parse_held(text: &str) -> Result<LeaseKey, Refusal> {
    LeaseId::parse(text).map_or_else(|| parse_lease(text), |id| Ok(id.code()))
}

const CODE_BYTES: usize = 16;
const TEXT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_its_text_and_only_its_maker_knows_it() {
        let (ours, theirs) = (Signer::new([1; 32]), Signer::new([2; 32]));
        let id = ours.sign(7, u64::MAX);
        let text = id.to_string();
        assert_eq!(LeaseId::parse(&text), Some(id));
        assert!(ours.knows(&id) && !theirs.knows(&id));
        assert!(!ours.knows(&LeaseId { lease: 8, ..id }));
        assert!(!ours.knows(&LeaseId { owner: 8, ..id }));
    }

    #[test]
    fn what_is_no_name_is_none() {
        let text = Signer::new([1; 32]).sign(7, 8).to_string();
        let with_sign = format!("+{}", &text[1..]);
        for wrong in ["", "1", &text[1..], &format!("{text}0"), &with_sign, "é", &"é".repeat(32)]
        {
            assert_eq!(LeaseId::parse(wrong), None, "{wrong}");
        }
    }
}
