//! Which language a file is written in: its name says.

use super::node::{self, Node};
use super::problem::Problem;
use super::{json, toml};

/// What a file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Yaml,
    Toml,
    Json,
}

impl Format {
    /// By the end of the name; YAML unless it is that of another.
    pub(super) fn of(file: &str) -> Self {
        let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            "toml" => Self::Toml,
            "json" => Self::Json,
            _ => Self::Yaml,
        }
    }

    /// The tree of a file; `None` when nothing can be made of it.
    pub(super) fn parse(self, text: &str, problems: &mut Vec<Problem>) -> Option<Node> {
        match self {
            Self::Yaml => node::parse(text, problems),
            Self::Toml => toml::parse(text, problems),
            // An empty file is told what to write in it.
            Self::Json if text.trim().is_empty() => None,
            Self::Json => json::parse(text, problems),
        }
    }
}
