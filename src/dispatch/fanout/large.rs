//! Large parts of merged replies.
//!
//! Each of the backends of a call has an equal share of `max_message`, or of the limit of a streamed list. A part
//! within its share is always used, whatever the other backends answer. A larger part is used if the merged reply has
//! room for it. Otherwise criswitch treats the largest of these parts like an error of its backend: it does not learn
//! the part, and replaces it with cached items. If the merged reply is still too large, the call fails, and the error
//! names the backend with the largest part.

use bytes::Bytes;
use tonic::Status;

use crate::call::Failed;
use crate::dispatch::fanout::fallback::{self, Part};
use crate::dispatch::fanout::{Share, joined, learned_share, most};
use crate::errors;
use crate::gate::Readable;

/// The part of a backend that has answered, or whose part is replaced.
pub(super) struct Answered<'a> {
    pub(super) part: Part<'a>,
    pub(super) share: Share,
}

impl Answered<'_> {
    fn is_large(&self) -> bool {
        matches!(self.share, Share::Large(..))
    }

    fn message(&self) -> Option<&Readable> {
        match &self.share {
            Share::Own(message) | Share::Large(message, _) => Some(message),
            Share::Replaced(message, _) => message.as_ref(),
            Share::Lacking(_) => None,
        }
    }

    fn size(&self) -> usize {
        self.message().map_or(0, |message| message.len())
    }
}

/// Replaces large parts, the largest first, until the merged reply fits. Learns the other large parts.
///
/// # Errors
/// Why a part cannot be used, if nothing can replace it.
pub(super) fn settle(answered: &mut [Answered<'_>]) -> Result<(), Failed> {
    while answered.iter().any(Answered::is_large)
        && let Some(why) = too_large(answered)
    {
        let large = answered.iter_mut().filter(|it| it.is_large());
        if let Some(largest) = large.max_by_key(|it| it.size()) {
            largest.share = fallback::or_replacement(largest.part, Err(why.into()))?;
        }
    }
    for it in answered {
        if let Share::Large(message, asked) = &it.share {
            it.share = fallback::or_replacement(it.part, learned_share(it.part, message, *asked))?;
        }
    }
    Ok(())
}

/// Why the merged reply is too large; `None` if it fits.
fn too_large(answered: &[Answered<'_>]) -> Option<Status> {
    let Part {
        switch, call, how, ..
    } = answered.first()?.part;
    let messages = answered.iter().filter_map(Answered::message).cloned();
    let sizes: Vec<_> = answered
        .iter()
        .map(|it| (it.part.backend.name(), it.size()))
        .collect();
    // A merge drops repeated items, so the merged reply may be smaller than the sum of its parts. A part that cannot be
    // decoded is rejected later, when it is learned.
    let size = match joined(&how.join, messages) {
        Ok(merged) => merged.iter().map(Bytes::len).sum(),
        Err(_) => sizes.iter().map(|(_, size)| size).sum::<usize>(),
    };
    let limit = most(switch, call.row);
    (size > limit).then(|| errors::reply_too_large(call.row, limit, &sizes))
}
