//! Large parts of merged replies.
//!
//! Each of the backends of a call has an equal share of `max_message`, or of the limit of a streamed list. Parts are
//! measured as the client gets them, because the names of handlers that clients use may be longer. A part within its
//! share is always used, whatever the other backends answer. A larger part is used if the merged reply has room for it.
//! Otherwise criswitch treats the largest of these parts like an error of its backend: it does not learn the part, and
//! replaces it with cached items. If the merged reply is still too large, the call fails, and the error names the
//! backend with the largest part.

use bytes::Bytes;
use tonic::Status;

use crate::call::Failed;
use crate::dispatch::fanout::fallback::{self, Part};
use crate::dispatch::fanout::{Share, joined, learned_share, most};
use crate::errors;
use crate::gate::Readable;
use crate::switch::view::View;

/// The part of a backend that has answered, or whose part is replaced.
pub(super) struct Answered<'a> {
    pub(super) part: Part<'a>,
    pub(super) share: Share,
}

impl Answered<'_> {
    fn is_large(&self) -> bool {
        matches!(self.share, Share::Large(..))
    }

    /// The message as the client gets it. Stats and metrics become no larger there.
    fn shown(&self) -> Option<Readable> {
        let Part { call, backend, .. } = self.part;
        match &self.share {
            Share::Own(message) | Share::Large(message, _) => {
                let list = call.listing().map(|listing| listing.list);
                let shown = list.filter(|list| !list.is_stats()).and_then(|list| {
                    let show = |view: &View<'_>, message: &_| view.shown(list, backend, message);
                    // The reason of a failure is found again when the part is learned or merged.
                    self.part.shown(list, message.clone(), show).ok()
                });
                Some(shown.unwrap_or_else(|| message.clone()))
            }
            Share::Replaced(message, _) => message.clone(),
            Share::Lacking(_) => None,
        }
    }
}

/// Replaces large parts, the largest first, until the merged reply fits. Learns the other large parts.
///
/// # Errors
/// Why a part cannot be used, if nothing can replace it.
pub(super) fn replace_large_parts(answered: &mut [Answered<'_>]) -> Result<(), Failed> {
    if !answered.iter().any(Answered::is_large) {
        return Ok(());
    }
    let mut shown: Vec<_> = answered.iter().map(Answered::shown).collect();
    while answered.iter().any(Answered::is_large)
        && let Some(why) = too_large(answered, &shown)
    {
        let parts = answered.iter_mut().zip(&mut shown);
        let large = parts.filter(|(it, _)| it.is_large());
        if let Some((largest, shown)) = large.max_by_key(|(_, shown)| size(shown)) {
            largest.share = fallback::or_replacement(largest.part, Err(why.into()))?;
            *shown = largest.shown();
        }
    }
    drop(shown);
    for it in answered {
        if let Share::Large(message, asked) = &it.share {
            it.share = fallback::or_replacement(it.part, learned_share(it.part, message, *asked))?;
        }
    }
    Ok(())
}

fn size(message: &Option<Readable>) -> usize {
    message.as_ref().map_or(0, |message| message.len())
}

/// Why the merged reply of the messages in `shown` is too large; `None` if it fits.
fn too_large(answered: &[Answered<'_>], shown: &[Option<Readable>]) -> Option<Status> {
    let Part {
        switch, call, how, ..
    } = answered.first()?.part;
    let messages = shown.iter().flatten().cloned();
    let sizes: Vec<_> = answered
        .iter()
        .zip(shown)
        .map(|(it, shown)| (it.part.backend.name(), size(shown)))
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
