//! Inputs from a seed: what is checked in, changed a little, and what a target makes up by itself.

use fastrand::Rng;

/// Where inputs come from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Inputs that mean something.
    pub corpus: &'a [Vec<u8>],
    /// What stands in such inputs.
    pub words: &'a [&'a str],
    /// Makes one up, if the target knows how.
    pub make: Option<fn(&mut Rng) -> Vec<u8>>,
}

/// The longest input.
pub const LENGTH_MAX: usize = 4 << 10;

impl Source<'_> {
    /// The next input.
    pub fn draw(&self, rng: &mut Rng) -> Vec<u8> {
        let mut input = match (rng.u8(..10), self.make) {
            (0, _) => noise(rng),
            (1..=4, Some(make)) => make(rng),
            _ => self.one(rng),
        };
        // A few are left as they are: what is made up seldom survives being changed.
        for _ in 0..rng.usize(..6) {
            self.edit(rng, &mut input);
        }
        input.truncate(LENGTH_MAX);
        input
    }

    fn one(&self, rng: &mut Rng) -> Vec<u8> {
        match self.corpus {
            [] => noise(rng),
            corpus => corpus[rng.usize(..corpus.len())].clone(),
        }
    }

    fn edit(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        if input.is_empty() {
            input.push(rng.u8(..));
        }
        let place = rng.usize(..input.len());
        let end = (place + rng.usize(1..24)).min(input.len());
        match rng.u8(..9) {
            0 => input[place] ^= 1 << rng.u8(..8),
            1 => input[place] = rng.u8(..),
            2 => input[place] = ODD[rng.usize(..ODD.len())],
            3 => drop(input.drain(place..end)),
            4 => {
                let copied = input[place..end].to_vec();
                drop(input.splice(place..place, copied));
            }
            5 => drop(input.splice(place..end, noise(rng).into_iter().take(8))),
            6 => {
                let other = self.one(rng);
                let from = rng.usize(..=other.len());
                let upto = (from + rng.usize(..64)).min(other.len());
                drop(input.splice(place..end, other[from..upto].to_vec()));
            }
            7 => digits(rng, input, place),
            _ if self.words.is_empty() => input.truncate(place),
            _ => {
                let word = self.words[rng.usize(..self.words.len())];
                let end = if rng.bool() { place } else { end };
                drop(input.splice(place..end, word.bytes()));
            }
        }
    }
}

/// Another digit for the next one there is, or a number in its place.
fn digits(rng: &mut Rng, input: &mut Vec<u8>, place: usize) {
    let Some(at) = input[place..].iter().position(u8::is_ascii_digit) else { return };
    let at = place + at;
    if rng.bool() {
        input[at] = rng.u8(b'0'..=b'9');
    } else {
        drop(input.splice(at..=at, NUMBERS[rng.usize(..NUMBERS.len())].bytes()));
    }
}

/// Choices, one after another: for targets to which any bytes mean something.
pub(crate) fn sequence(rng: &mut Rng) -> Vec<u8> {
    (0..rng.usize(..500)).map(|_| rng.u8(..)).collect()
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.u8(..8) == 0 { rng.usize(..1_500) } else { rng.usize(..120) };
    (0..length).map(|_| rng.u8(..)).collect()
}

const ODD: &[u8] = b"\x00\x01\x7f\x80\xff\n\r\t\"'{}[]:,#&*-%/ ";
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "9007199254740991",
    "9007199254740992",
    "18446744073709551616",
    "0.000000001",
    "1e9",
    "4503599627370495",
    "1125899906842623",
];
