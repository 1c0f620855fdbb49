//! A file as a tree that remembers the text of every scalar and where it stood.
//!
//! No scalar is ever read as a number here: `0.1` stays the three characters that were typed, so
//! that no float stands between the file and the exact decimal it means.
//!
//! # Guarantee
//! Nesting is at most [`DEPTH_MAX`] deep. Aliases are refused, so a small file cannot mean a large
//! tree; the tree has at most one node per character of the file.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::problem::{Place, Problem};

/// One value of the file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Text as typed; `plain` when it stood without quotes.
    Scalar { text: String, plain: bool },
    /// Keys and values in the order of the file, no key twice.
    Map(Vec<Entry>),
    /// Values in a row.
    List(Vec<Node>),
    /// Something that was refused where it stood, and needs no second complaint.
    Refused,
}

/// One key of a map and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) value: Node,
}

impl Node {
    /// Whether nothing was written.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain: true } => matches!(text.as_str(), "" | "~" | "null"),
            _ => false,
        }
    }

    /// What the value is, in words.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Scalar { .. } => "a single value",
            Value::Map(_) => "a map",
            Value::List(_) => "a list",
            Value::Refused => "an alias",
        }
    }
}

/// Reads the one document of a file. What is wrong with its form is added to `problems`; `None`
/// when nothing can be made of it.
pub(crate) fn parse(source: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    let options = granit_parser::options! {
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
        disallow_directives: true,
    };
    let mut tree = Tree { open: Vec::new(), root: None, documents: 0, problems };
    for event in Parser::new_from_str_with_options(source, options) {
        match event {
            Ok((event, span)) => {
                if !tree.take(event, &span) {
                    return None;
                }
            }
            Err(error) => {
                let mark = error.marker();
                let place = Place { line: mark.line().max(1), column: mark.col() + 1, width: 1 };
                tree.report(place, format!("not valid YAML: {}", error.info()));
                return None;
            }
        }
    }
    tree.root
}

/// The tree while it grows.
struct Tree<'a> {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    problems: &'a mut Vec<Problem>,
}

/// A map or list whose end has not come yet.
enum Open {
    Map { entries: Vec<Entry>, seen: HashMap<String, usize>, key: Option<Key>, place: Place },
    List { values: Vec<Node>, place: Place },
}

/// A key that waits for its value. One that is not text is dropped together with the value.
struct Key {
    text: Option<String>,
    place: Place,
}

impl Tree<'_> {
    /// Takes one event; says whether to go on.
    fn take(&mut self, event: Event<'_>, span: &Span) -> bool {
        let place = place_of(span);
        match &event {
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                self.report(place, "aliases are not accepted; write the value out".into());
                self.put(Node { value: Value::Refused, place });
            }
            other if other.anchor_id().is_some() => {
                self.report(place, "anchors are not accepted; remove the `&name`".into());
            }
            other if other.tag().is_some() => {
                self.report(place, "tags are not accepted; remove the `!name`".into());
            }
            _ => {}
        }
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a second document begins here; write one document per file";
                    self.report(place, message.into());
                    return false;
                }
            }
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                self.put(Node { value: Value::Scalar { text: text.into_owned(), plain }, place });
            }
            Event::MappingStart(..) => {
                let (entries, seen) = (Vec::new(), HashMap::new());
                return self.open(Open::Map { entries, seen, key: None, place }, place);
            }
            Event::SequenceStart(..) => {
                return self.open(Open::List { values: Vec::new(), place }, place);
            }
            Event::MappingEnd | Event::SequenceEnd => match self.open.pop() {
                Some(Open::Map { entries, place, .. }) => {
                    self.put(Node { value: Value::Map(entries), place });
                }
                Some(Open::List { values, place }) => {
                    self.put(Node { value: Value::List(values), place });
                }
                None => {}
            },
            _ => {}
        }
        true
    }

    fn open(&mut self, open: Open, place: Place) -> bool {
        if self.open.len() >= DEPTH_MAX {
            self.report(place, format!("nested more than {DEPTH_MAX} deep"));
            return false;
        }
        self.open.push(open);
        true
    }

    /// Puts a finished value where it belongs.
    fn put(&mut self, node: Node) {
        let mut repeated = None;
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { values, .. }) => values.push(node),
            Some(Open::Map { entries, seen, key, .. }) => match key.take() {
                None => *key = Some(Key::of(node)),
                Some(Key { text: None, place }) => {
                    repeated = Some((place, "a key must be text; put it in quotes".into()));
                }
                Some(Key { text: Some(text), place }) => match seen.get(&text) {
                    Some(first) => {
                        let message = format!(
                            "the key {} is already on line {first}; remove one of them",
                            super::problem::quoted(&text)
                        );
                        repeated = Some((place, message));
                    }
                    None => {
                        seen.insert(text.clone(), place.line);
                        entries.push(Entry { key: text, place, value: node });
                    }
                },
            },
        }
        if let Some((place, message)) = repeated {
            self.report(place, message);
        }
    }

    fn report(&mut self, place: Place, message: String) {
        self.problems.push(Problem { place: Some(place), path: String::new(), message });
    }
}

impl Key {
    fn of(node: Node) -> Self {
        let place = node.place;
        match node.value {
            Value::Scalar { text, .. } => Self { text: Some(text), place },
            Value::Map(_) | Value::List(_) | Value::Refused => Self { text: None, place },
        }
    }
}

fn place_of(span: &Span) -> Place {
    let (start, end) = (span.start, span.end);
    // A value over several lines is marked to the end of its first, which the report knows.
    let same_line = start.line() == end.line();
    let width = if same_line { end.col().saturating_sub(start.col()) } else { usize::MAX };
    Place { line: start.line().max(1), column: start.col() + 1, width: width.max(1) }
}

/// How deep maps and lists may be nested.
pub(crate) const DEPTH_MAX: usize = 64;
