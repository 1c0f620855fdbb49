//! Decimals as people write them, kept exactly.
//!
//! # Guarantee
//! What was written is what is computed with: no float stands between the text and the integers.
//! What needs more than nine places or more than 2^53 − 1 smallest units is refused, not rounded.

use core::fmt;
use core::str::FromStr;

use crate::EXACT_MAX;

/// A decimal number that is not negative: `units · 10^-places`, reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decimal {
    units: u64,
    places: u8,
}

/// Why a text is not an exact decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecimalError {
    /// The text is not a decimal number.
    Malformed,
    /// The number is negative.
    Negative,
    /// The number needs more than nine decimal places.
    TooFine,
    /// The number, in units of its last place, is above 2^53 − 1.
    TooLarge,
}

impl Decimal {
    /// A whole number, or `None` above 2^53 − 1.
    #[must_use]
    pub const fn whole(units: u64) -> Option<Self> {
        if units <= EXACT_MAX { Some(Self { units, places: 0 }) } else { None }
    }

    /// Whether this is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.units == 0
    }

    /// The whole part.
    #[must_use]
    pub const fn floor(self) -> u64 {
        self.units / self.denominator()
    }

    /// The number if it is whole.
    #[must_use]
    pub const fn as_whole(self) -> Option<u64> {
        if self.places == 0 { Some(self.units) } else { None }
    }

    /// The number times a factor, if that is whole and at most 2^53 − 1.
    ///
    /// # Example
    /// ```
    /// use admittance_core::Decimal;
    /// let one_and_a_half: Decimal = "1.5".parse()?;
    /// assert_eq!(one_and_a_half.times(1_000_000), Some(1_500_000));
    /// assert_eq!(one_and_a_half.times(1), None);
    /// # Ok::<(), admittance_core::DecimalError>(())
    /// ```
    #[must_use]
    pub fn times(self, factor: u64) -> Option<u64> {
        let product = u128::from(self.units) * u128::from(factor);
        let denominator = u128::from(self.denominator());
        if product % denominator != 0 {
            return None;
        }
        u64::try_from(product / denominator).ok().filter(|&whole| whole <= EXACT_MAX)
    }

    /// This number, or one if it is more.
    pub(crate) const fn at_most_one(self) -> Self {
        if self.floor() == 0 { self } else { Self { units: 1, places: 0 } }
    }

    /// This part of a whole number of units, rounded down; `None` if that is nothing. A share above
    /// one is taken for one.
    pub(crate) fn of(self, units: u64) -> Option<u64> {
        let parts = u128::from(units) * u128::from(self.numerator());
        let part = u64::try_from(parts / u128::from(self.denominator())).unwrap_or(units);
        Some(part.min(units)).filter(|&part| part > 0)
    }

    pub(crate) const fn numerator(self) -> u64 {
        self.units
    }

    pub(crate) const fn denominator(self) -> u64 {
        10_u64.pow(self.places as u32)
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let text = text.strip_prefix('+').unwrap_or(text);
        if let Some(rest) = text.strip_prefix('-') {
            return match rest.parse::<Self>() {
                Ok(number) if number.is_zero() => Ok(number),
                Ok(_) | Err(DecimalError::TooFine | DecimalError::TooLarge) => {
                    Err(DecimalError::Negative)
                }
                Err(error) => Err(error),
            };
        }
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, small_integer(exponent)?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(DecimalError::Malformed);
        }
        let fraction = fraction.trim_end_matches('0');
        let mut units = 0_u64;
        for digit in whole.bytes().chain(fraction.bytes()) {
            let digit = match digit {
                b'0'..=b'9' => u64::from(digit - b'0'),
                _ => return Err(DecimalError::Malformed),
            };
            units = units.checked_mul(10).ok_or(DecimalError::TooLarge)?;
            units = units.checked_add(digit).ok_or(DecimalError::TooLarge)?;
        }
        let places = i32::try_from(fraction.len()).map_err(|_| DecimalError::TooFine)? - exponent;
        Self::reduced(units, places)
    }
}

impl Decimal {
    fn reduced(units: u64, places: i32) -> Result<Self, DecimalError> {
        let (mut units, mut places) = (units, places);
        if units == 0 {
            return Ok(Self { units, places: 0 });
        }
        while places > 0 && units % 10 == 0 {
            (units, places) = (units / 10, places - 1);
        }
        while places < 0 {
            units = units.checked_mul(10).ok_or(DecimalError::TooLarge)?;
            places += 1;
        }
        let places = u8::try_from(places).ok().filter(|&places| places <= PLACES_MAX);
        let places = places.ok_or(DecimalError::TooFine)?;
        if units > EXACT_MAX {
            return Err(DecimalError::TooLarge);
        }
        Ok(Self { units, places })
    }
}

fn small_integer(text: &str) -> Result<i32, DecimalError> {
    // Anything beyond this cannot come out exact, whatever the mantissa is.
    let exponent = text.parse::<i32>().map_err(|_| DecimalError::Malformed)?;
    if exponent.abs() <= 400 { Ok(exponent) } else { Err(DecimalError::TooLarge) }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denominator = self.denominator();
        write!(f, "{}", self.units / denominator)?;
        if self.places > 0 {
            write!(f, ".{:0width$}", self.units % denominator, width = usize::from(self.places))?;
        }
        Ok(())
    }
}

impl fmt::Display for DecimalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a decimal number",
            Self::Negative => "must not be negative",
            Self::TooFine => "has more than nine decimal places",
            Self::TooLarge => "has more digits than 9007199254740991 (2^53 - 1)",
        })
    }
}

impl core::error::Error for DecimalError {}

/// Finer than a nanosecond of a second, and small enough that products of two fit 128 bits.
const PLACES_MAX: u8 = 9;

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_decimal_reads_and_writes_what_people_write() {
        for (text, shown) in [
            ("0", "0"),
            ("7", "7"),
            ("0.1", "0.1"),
            ("2.50", "2.5"),
            ("1e3", "1000"),
            ("1.25E2", "125"),
            ("5e-1", "0.5"),
            (".5", "0.5"),
            ("5.", "5"),
            ("+3", "3"),
            ("-0", "0"),
            ("9007199254740991", "9007199254740991"),
            ("0.000000001", "0.000000001"),
            ("10.0000000000", "10"),
            ("0e400", "0"),
            ("100e-2", "1"),
        ] {
            assert_eq!(text.parse::<Decimal>().map(|d| d.to_string()), Ok(shown.to_string()));
        }
    }

    #[test]
    fn what_is_not_exact_is_refused_with_the_reason() {
        for (text, error) in [
            ("", DecimalError::Malformed),
            (".", DecimalError::Malformed),
            ("1_000", DecimalError::Malformed),
            ("0x10", DecimalError::Malformed),
            ("NaN", DecimalError::Malformed),
            ("1e", DecimalError::Malformed),
            ("-1", DecimalError::Negative),
            ("-1e-30", DecimalError::Negative),
            ("0.0000000001", DecimalError::TooFine),
            ("9007199254740992", DecimalError::TooLarge),
            ("1e300", DecimalError::TooLarge),
            ("99999999999999999999", DecimalError::TooLarge),
        ] {
            assert_eq!(text.parse::<Decimal>(), Err(error), "{text}");
        }
    }
}
