//! What is wrong with a file, shown where it is.

use std::fmt;

/// Everything found wrong, or odd, in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    file: String,
    source: String,
    problems: Vec<Problem>,
}

/// One thing that is wrong, where it is, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is; `None` when the file as a whole is meant.
    pub place: Option<Place>,
    /// The keys that lead there, as `limiters.api.limit`; empty for the file itself.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

/// A stretch of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted in characters from 1.
    pub column: usize,
    /// How many characters are meant, at least 1.
    pub width: usize,
}

impl Report {
    pub(crate) fn new(file: &str, source: &str, problems: Vec<Problem>) -> Self {
        let mut problems = problems;
        problems.sort_by_key(|problem| problem.place.map(|place| (place.line, place.column)));
        Self { file: file.to_owned(), source: source.to_owned(), problems }
    }

    /// What was found, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    fn show(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Printable(&self.file))?;
        if let Some(Place { line, column, .. }) = problem.place {
            write!(f, ":{line}:{column}")?;
        }
        if !problem.path.is_empty() {
            write!(f, ": {}", Printable(&problem.path))?;
        }
        writeln!(f, ": {}", problem.message)?;
        match problem.place {
            Some(place) => self.show_line(place, f),
            None => Ok(()),
        }
    }

    /// The line itself, and carets under what is meant.
    fn show_line(&self, place: Place, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(line) = lines(&self.source).nth(place.line.saturating_sub(1)) else {
            return Ok(());
        };
        // A long line is shown from a little before the place, so that the caret stays in view.
        let before = place.column.saturating_sub(1);
        let is_long = line.chars().count() > LINE_SHOWN_MAX;
        let skipped = if is_long { before.saturating_sub(LINE_SHOWN_MAX / 4) } else { 0 };
        let shown: String = line.chars().skip(skipped).take(LINE_SHOWN_MAX).collect();
        let blanks = shown.chars().take(before - skipped);
        let blanks: String = blanks.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let room = shown.chars().count().saturating_sub(before - skipped).max(1);
        let carets = "^".repeat(place.width.clamp(1, room));
        let (number, margin) = (place.line, place.line.to_string().len());
        writeln!(f, "  {number} | {}", Printable(&shown))?;
        writeln!(f, "  {:margin$} | {blanks}{carets}", "")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(PROBLEMS_SHOWN_MAX) {
            self.show(problem, f)?;
        }
        match self.problems.len().saturating_sub(PROBLEMS_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(f, "{}: {more} more problems are not shown", Printable(&self.file)),
        }
    }
}

impl std::error::Error for Report {}

/// The lines of a file as YAML counts them: a carriage return ends one too, alone or not.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

/// Text from a file or a caller on its way to a terminal: no control characters.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let safe = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
        self.0.chars().try_for_each(|c| f.write_char(safe(c)))
    }
}

/// Text in quotes, cut to a length that fits a message.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// The closest of several words, if one is close enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, among: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let far = (word.chars().count() / 3).clamp(1, 3);
    let scored = among.iter().map(|&known| (distance(&word, &known.to_ascii_lowercase()), known));
    scored
        .filter(|&(distance, _)| distance <= far)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to turn
/// one word into the other.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > WORD_MAX || b.len() > WORD_MAX {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// More than this is a different file, not a list of mistakes.
const PROBLEMS_SHOWN_MAX: usize = 100;
const LINE_SHOWN_MAX: usize = 120;
const QUOTED_MAX: usize = 48;
/// Longer words are not misspelt keys.
const WORD_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        let known = ["period", "periodMs", "limit"];
        for (word, meant) in [
            ("perod", Some("period")),
            ("Period", Some("period")),
            ("periodms", Some("periodMs")),
            ("limits", Some("limit")),
            ("banana", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
    }

    #[test]
    fn a_long_line_is_cut_so_that_the_caret_stays_in_view() {
        let source = format!("{}x{}", "a".repeat(5_000), "b".repeat(5_000));
        let place = Some(Place { line: 1, column: 5_001, width: 1 });
        let problem = Problem { place, path: String::new(), message: "m".into() };
        let shown = Report::new("f", &source, vec![problem]).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() < 140), "{shown}");
        assert_eq!(lines[1].find('x'), lines[2].find('^'));
    }

    #[test]
    fn a_line_is_shown_whichever_way_lines_end() {
        for end in ["\n", "\r\n", "\r"] {
            let source = format!("limiters:{end}  a: 5{end}");
            let config = crate::Config::parse("f", &source, crate::Fail::Open);
            let shown = config.expect_err("5 is no policy").to_string();
            assert!(shown.contains("  2 |   a: 5\n"), "{end:?}: {shown}");
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let place = Some(Place { line: 1, column: 1, width: 1 });
        let problem = Problem { place, path: "a\u{1b}[2J".into(), message: "m".into() };
        let shown = Report::new("f", "\u{1b}]0;x", vec![problem]).to_string();
        assert!(!shown.contains('\u{1b}'));
    }
}
