//! More reactors for a mount that stays on its commit: each has a reader of its own, and answers what only looks.

use std::rc::Rc;

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};

use crate::ending::alone;
use crate::face::{self, Job};
use crate::shared::{Caching, Shared};
use crate::{Contents, JOBS_MAX};

/// What a mount knows of another reactor that serves it.
pub struct Helper {
    sender: MailboxSender<Job>,
}

/// That reactor's side.
pub struct Helping {
    jobs: Mailbox<Job>,
}

impl Helper {
    /// A helper, and what its reactor needs to be one.
    pub fn new() -> (Self, Helping) {
        let (sender, jobs) = mailbox(JOBS_MAX);
        (Self { sender }, Helping { jobs })
    }

    pub(crate) fn sender(&self) -> MailboxSender<Job> {
        self.sender.clone()
    }

    /// Nothing is asked of it any more.
    pub(crate) fn end(self) {
        face::send(&self.sender, Job::Ended);
    }
}

impl Helping {
    /// Answers with `contents`, which stay on the commit that the mount shows, until the mount has ended; gives them back.
    pub async fn serve(mut self, contents: Contents) -> Contents {
        let Contents { source, caching, .. } = contents;
        assert_eq!(caching, Caching::Still, "others would show what has changed");
        let shared = Rc::new(Shared::new(source, caching));
        while let Some(job) = self.jobs.recv().await {
            match job {
                Job::Work(work) => drop(reactor::spawn(work(shared.clone()))),
                Job::Stop | Job::Ended => break,
            }
        }
        let source = alone(shared).await.source.into_inner();
        Contents {
            source,
            caching,
            handed_over: None,
        }
    }
}
