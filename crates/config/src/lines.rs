//! Indexes a text, so that the line and column of an offset are found without a scan from the start. Does no I/O.

/// The number of bytes between two stored counts of characters. To find a column, at most twice this number of bytes is
/// read.
const STEP: usize = 256;

/// The index of one text.
#[derive(Debug)]
pub(super) struct Lines {
    /// The byte offset of each line but the first.
    starts: Vec<usize>,
    /// The number of characters that begin before each multiple of [`STEP`].
    counts: Vec<usize>,
}

impl Lines {
    /// Indexes `text` in one pass.
    pub(super) fn of(text: &str) -> Lines {
        let mut count = 0;
        let steps = text.as_bytes().chunks(STEP).map(|step| {
            count += characters(step);
            count
        });
        Lines {
            counts: [0].into_iter().chain(steps).collect(),
            starts: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
        }
    }

    /// The line and the column, both counted from one, of the byte `offset` in the same text.
    pub(super) fn place(&self, text: &str, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|last| self.starts.get(last));
        let before = self.characters_before(text, start.copied().unwrap_or_default());
        let column = self.characters_before(text, offset).saturating_sub(before);
        (1 + line, 1 + column)
    }

    fn characters_before(&self, text: &str, offset: usize) -> usize {
        let offset = offset.min(text.len());
        let step = offset / STEP;
        let counted = self.counts.get(step).copied().unwrap_or_default();
        let rest = text.as_bytes().get(step * STEP..offset);
        counted + characters(rest.unwrap_or_default())
    }
}

/// The number of characters that begin in these bytes of UTF-8.
fn characters(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .filter(|byte| **byte & 0b1100_0000 != 0b1000_0000)
        .count()
}

#[cfg(test)]
mod tests {
    use super::{Lines, STEP};

    #[test]
    fn a_place_equals_a_count_from_the_start_of_the_text() {
        let long = "ä€x\u{1f980}".repeat(STEP);
        for text in [
            "",
            "\n",
            "one\n\ntwö\nthree",
            &long,
            &format!("{long}\n{long}\nend\n"),
        ] {
            let lines = Lines::of(text);
            for (offset, _) in text.char_indices().chain([(text.len(), ' ')]) {
                let before = &text[..offset];
                let column = before.rsplit('\n').next().unwrap().chars().count();
                let counted = (1 + before.matches('\n').count(), 1 + column);
                assert_eq!(lines.place(text, offset), counted);
            }
        }
    }
}
