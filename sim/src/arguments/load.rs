//! What is typed for a regulator in front of workers.

use admittance_core::load::{DelayRules, JitterRules, Law};
use admittance_sim::load::{Queues, Scene, changing, steady};
use clap::{Args, ValueEnum};

#[derive(Args)]
pub(crate) struct Load {
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[arg(long, value_enum, default_value_t = Which::Both)]
    law: Which,
    #[arg(long, value_enum, default_value_t = Worlds::Changing)]
    worlds: Worlds,
    /// Tells the regulator of probes alone.
    #[arg(long)]
    probes_only: bool,
    /// Refuses nothing for want of room.
    #[arg(long)]
    without_room: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Delay,
    Jitter,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Worlds {
    /// Loads that do not change, for executors of all sizes and kinds.
    Steady,
    /// Loads that change, and things that go wrong.
    Changing,
}

impl Load {
    /// The laws, their names, and whether their bounds count.
    pub(crate) fn laws(&self) -> Vec<(Law, &'static str, bool)> {
        let delay = (Law::Delay(DelayRules::default()), "delay", true);
        let jitter = (Law::Jitter(JitterRules::default()), "jitter, the foil", false);
        match self.law {
            Which::Delay => vec![delay],
            Which::Jitter => vec![jitter],
            Which::Both => vec![delay, jitter],
        }
    }

    pub(crate) fn about(&self) -> String {
        let probes = if self.probes_only { ", probes only" } else { "" };
        let room = if self.without_room { ", no room enforced" } else { "" };
        format!("{probes}{room}")
    }

    pub(crate) fn scenes(&self) -> impl Iterator<Item = Scene> {
        let scenes: Vec<Scene> = match self.worlds {
            Worlds::Steady => {
                let loads = [50, 70, 90, 105, 150, 300, 1_000];
                loads.into_iter().flat_map(|percent| steady(self.seed, percent)).collect()
            }
            Worlds::Changing => {
                let kinds = [Queues::One, Queues::Stealing { every: 61 }];
                kinds.into_iter().flat_map(|queues| changing(self.seed, queues)).collect()
            }
        };
        let (probes_only, without_room) = (self.probes_only, self.without_room);
        scenes.into_iter().map(move |scene| {
            let scene = if probes_only { scene.by_probes() } else { scene };
            if without_room { scene.without_room() } else { scene }
        })
    }
}
