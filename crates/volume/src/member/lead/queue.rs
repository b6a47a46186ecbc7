//! What waits to be ordered.

use crate::identity::RequestId;
use crate::member::Member;
use crate::output::{Request, Status};

/// A write without a sequence in this epoch.
#[derive(Clone, Copy, Debug)]
pub(in crate::member) struct Queued {
    pub(in crate::member) request: Request,
    /// In an epoch before it had one, and copies may have it.
    pub(in crate::member) begun: bool,
    /// What was read to be compared with it does not fit its checksums.
    pub(in crate::member) damaged: bool,
}

impl Queued {
    /// One that nothing was done for.
    pub(in crate::member) fn new(request: Request) -> Self {
        Self {
            request,
            begun: false,
            damaged: false,
        }
    }

    /// How it ends where it is not done in this epoch, because of `status`.
    pub(in crate::member) fn undone(&self, status: Status) -> Status {
        if self.begun { Status::Unknown } else { status }
    }
}

impl Member {
    pub(in crate::member) fn add_write(&mut self, request: Request) {
        match &mut self.lead {
            Some(lead) => {
                lead.token_asked = lead.token_asked.max(request.writer_token);
                lead.waiting.push_back(Queued::new(request));
            }
            None => unreachable!("a write is refused unless this node leads"),
        }
    }

    /// There is no room for the write at this place. If it had begun in an epoch before, copies may have it.
    pub(in crate::member) fn refuse_for_room(&mut self, at: usize) {
        let queued = self.lead.as_mut().and_then(|lead| lead.waiting.remove(at));
        if let Some(queued) = queued {
            self.give_back(queued.request.data());
            self.complete(queued.request.id, queued.undone(Status::NoRoom));
        }
    }

    pub(in crate::member) fn add_flush(&mut self, request: RequestId) {
        match &mut self.lead {
            Some(lead) => lead.flush_waiting.push(request),
            None => unreachable!("a flush is refused unless this node leads"),
        }
    }

    pub(in crate::member) fn cancel_waiting(&mut self, request: RequestId) {
        let Some(lead) = &mut self.lead else {
            return;
        };
        let at = lead
            .waiting
            .iter()
            .position(|queued| queued.request.id == request);
        if let Some(queued) = at.and_then(|at| lead.waiting.remove(at)) {
            self.give_back(queued.request.data());
            self.complete(request, queued.undone(Status::Cancelled));
        } else if let Some(comparing) = lead.cancel_comparing(request) {
            self.give_back(comparing.data());
            self.complete(request, Status::Cancelled);
        } else if let Some(at) = lead.flush_waiting.iter().position(|r| *r == request) {
            lead.flush_waiting.remove(at);
            self.complete(request, Status::Cancelled);
        }
    }
}
