//! The scripts, put together from their parts.
//!
//! A script is one text that the server keeps under its SHA-1. Each is made of the parts it needs
//! and no more, since every local function of it is made anew at each call.
//!
//! # Guarantee
//! What is sent is what is in `scripts/`: a change of any script changes its hash, and the hashes
//! are pinned.
//!
//! # Proven by
//! `tests/it/scripts.rs::no_script_changes_by_accident`.

use std::sync::Arc;

use admittance::Builtin;
use admittance::lease::GIVE_BACK_MAX;

/// Which strategies a script knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Tat,
    Window,
    Sliding,
    Log,
}

impl Family {
    const ALL: [Self; 4] = [Self::Tat, Self::Window, Self::Sliding, Self::Log];

    pub(crate) const fn of(strategy: &Builtin) -> Option<Self> {
        Some(match strategy {
            Builtin::Tat(_) => Self::Tat,
            Builtin::Window(_) => Self::Window,
            Builtin::SlidingWindow(_) => Self::Sliding,
            Builtin::SlidingLog(_) => Self::Log,
            _ => return None,
        })
    }

    /// The number that scripts of several limits know it by.
    pub(crate) const fn number(self) -> i64 {
        self as i64 + 1
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Tat => include_str!("../scripts/tat.lua"),
            Self::Window => include_str!("../scripts/window.lua"),
            Self::Sliding => include_str!("../scripts/sliding.lua"),
            Self::Log => include_str!("../scripts/log.lua"),
        }
    }

    /// The parts for charging, and those for looking only.
    fn parts(self) -> (String, &'static str) {
        let (charge, look) = self.text().split_once(LOOK).unwrap_or((self.text(), ""));
        (charge.replace(CADENCE, "").replace(COUNT, ""), look)
    }
}

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    Check(Family),
    Peek(Family),
    Forecast(Family),
    Reset,
    All,
    Any,
    Load,
    Swap,
    Lease(Lendable),
    GiveBack(Lendable),
    Beat,
    Leave,
    Collect,
    Secret,
    Post,
    Book,
    Fuse,
}

/// The families whose limits can be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lendable {
    Tat,
    Window,
}

impl Lendable {
    pub(crate) const fn of(family: Family) -> Option<Self> {
        match family {
            Family::Tat => Some(Self::Tat),
            Family::Window => Some(Self::Window),
            Family::Sliding | Family::Log => None,
        }
    }

    /// The family, and how it takes back.
    const fn parts(self) -> (Family, &'static str) {
        match self {
            Self::Tat => (Family::Tat, include_str!("../scripts/tat_back.lua")),
            Self::Window => (Family::Window, include_str!("../scripts/window_back.lua")),
        }
    }
}

impl Script {
    /// Every script, in the order of [`place`](Self::place).
    pub(crate) fn every() -> Vec<Self> {
        let families = Family::ALL.iter();
        let each = families.flat_map(|&f| [Self::Check(f), Self::Peek(f), Self::Forecast(f)]);
        let each = each.chain([Self::Reset, Self::All, Self::Any, Self::Load, Self::Swap]);
        let lent = [Lendable::Tat, Lendable::Window];
        let each = each.chain(lent.map(Self::Lease)).chain(lent.map(Self::GiveBack));
        each.chain([Self::Beat, Self::Leave, Self::Collect, Self::Secret, Self::Post])
            .chain([Self::Book, Self::Fuse])
            .collect()
    }

    const fn place(self) -> usize {
        match self {
            Self::Check(family) => 3 * family as usize,
            Self::Peek(family) => 3 * family as usize + 1,
            Self::Forecast(family) => 3 * family as usize + 2,
            Self::Reset => 12,
            Self::All => 13,
            Self::Any => 14,
            Self::Load => 15,
            Self::Swap => 16,
            Self::Lease(family) => 17 + family as usize,
            Self::GiveBack(family) => 19 + family as usize,
            Self::Beat => 21,
            Self::Leave => 22,
            Self::Collect => 23,
            Self::Secret => 24,
            Self::Post => 25,
            Self::Book => 26,
            Self::Fuse => 27,
        }
    }

    /// Its name in messages and tests.
    pub(crate) const fn name(self) -> &'static str {
        const NAMES: [&str; 28] = [
            "check tat",
            "peek tat",
            "forecast tat",
            "check window",
            "peek window",
            "forecast window",
            "check sliding",
            "peek sliding",
            "forecast sliding",
            "check log",
            "peek log",
            "forecast log",
            "reset",
            "all",
            "any",
            "load",
            "swap",
            "lease tat",
            "lease window",
            "give back tat",
            "give back window",
            "beat",
            "leave",
            "collect",
            "secret",
            "post",
            "book",
            "fuse",
        ];
        NAMES[self.place()]
    }

    fn text(self) -> String {
        let looking = |family: Family, main: &str| {
            let (charge, look) = family.parts();
            [PRELUDE, MULDIV, &charge, look, main].concat()
        };
        match self {
            Self::Check(family) => {
                let (charge, _) = family.parts();
                let first = match family {
                    Family::Tat => include_str!("../scripts/tat_check.lua"),
                    Family::Window | Family::Sliding | Family::Log => CHECK_FIRST,
                };
                let main = include_str!("../scripts/check.lua");
                let muldiv =
                    if matches!(family, Family::Tat | Family::Sliding) { MULDIV } else { "" };
                [PRELUDE, first, muldiv, &charge, main].concat()
            }
            Self::Peek(family) => looking(family, include_str!("../scripts/peek.lua")),
            Self::Forecast(family) => looking(family, include_str!("../scripts/forecast.lua")),
            Self::Reset => [PRELUDE, include_str!("../scripts/reset.lua")].concat(),
            Self::All => several(include_str!("../scripts/all.lua")),
            Self::Any => several(include_str!("../scripts/any.lua")),
            Self::Load => [PRELUDE, include_str!("../scripts/load.lua")].concat(),
            Self::Swap => [PRELUDE, include_str!("../scripts/swap.lua")].concat(),
            Self::Lease(family) => looking(family.parts().0, include_str!("../scripts/lease.lua")),
            Self::GiveBack(family) => {
                let (family, restore) = family.parts();
                let (charge, _) = family.parts();
                let main = include_str!("../scripts/give_back.lua");
                [PRELUDE, MULDIV, &charge, restore, main].concat()
            }
            Self::Beat => [PRELUDE, FLEET, include_str!("../scripts/beat.lua")].concat(),
            Self::Leave => [PRELUDE, FLEET, include_str!("../scripts/leave.lua")].concat(),
            Self::Collect => [PRELUDE, RELAY, include_str!("../scripts/collect.lua")].concat(),
            Self::Secret => [PRELUDE, RELAY, include_str!("../scripts/secret.lua")].concat(),
            Self::Post => [PRELUDE, RELAY, include_str!("../scripts/post.lua")].concat(),
            Self::Book => [PRELUDE, cadence(), BOOK].concat(),
            // Accounts as a function: what it needs is made only if it is called.
            Self::Fuse => {
                let main = include_str!("../scripts/fuse.lua");
                several(&[cadence(), "local function book(KEYS)\n", BOOK, "end\n", main].concat())
            }
        }
    }
}

/// A script that knows every family, each as a function that makes its functions.
fn several(main: &str) -> String {
    let mut text = [PRELUDE, MULDIV, "local FAMILIES = {\n"].concat();
    for family in Family::ALL {
        let (charge, look) = family.parts();
        text.extend(["function()\n", &charge, look, EXPORTS, "end,\n"]);
    }
    text.extend(["}\n", include_str!("../scripts/family.lua"), main]);
    text
}

/// The part of windows' script that says when each begins and ends.
fn cadence() -> &'static str {
    let text = Family::Window.text();
    let after = text.split_once(CADENCE).map_or("", |(_, after)| after);
    after.split_once(COUNT).map_or("", |(cadence, _)| cadence)
}

/// Every script with its hash.
#[derive(Clone, Debug)]
pub(crate) struct Scripts(Arc<[Body]>);

/// One script's text and its SHA-1.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) text: String,
    pub(crate) hash: String,
}

impl Scripts {
    /// The scripts, with a text replaced in all of them, for tests that a change is noticed.
    pub(crate) fn edited(edits: &[(String, String)]) -> Self {
        let edit = |text: String| {
            edits.iter().fold(text, |text, (from, to)| text.replace(from.as_str(), to))
        };
        let body = |script: Script| {
            let text = edit(script.text());
            let hash = redis::Script::new(&text).get_hash().to_owned();
            Body { text, hash }
        };
        Self(Script::every().into_iter().map(body).collect())
    }

    pub(crate) fn body(&self, script: Script) -> &Body {
        &self.0[script.place()]
    }
}

const PRELUDE: &str = include_str!("../scripts/prelude.lua");
const MULDIV: &str = include_str!("../scripts/muldiv.lua");
const FLEET: &str = include_str!("../scripts/fleet.lua");
const BOOK: &str = include_str!("../scripts/book.lua");
const RELAY: &str = include_str!("../scripts/relay.lua");
/// What comes after these lines is for looking only, says when windows begin, and counts in them.
const LOOK: &str = "-- look\n";
const CADENCE: &str = "-- cadence\n";
const COUNT: &str = "-- count\n";
/// Where a check begins that has no ordinary case of its own.
const CHECK_FIRST: &str = "local first, answers = 1, { now, 0, 0, 0 }\n";
const EXPORTS: &str = "return { parse = parse, read = read, ask = ask, write = write, \
                       peek = peek }\n";

const _: () = {
    let kept = GIVE_BACK_MAX.us() + 60_000_000;
    assert!(
        GIVE_BACK_MAX.us() == 120_000_000 && kept == 180_000_000,
        "as give_back.lua and reset.lua have them"
    );
};
