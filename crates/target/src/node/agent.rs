//! The node engine that supervises this target: who hears of news, and what it knows.

use agentlink::FromTarget;
use reactor::sync::Sender;

use super::Node;

impl Node {
    /// Where proposals and news go; replaces the agent before.
    pub fn set_agent(&self, sender: Sender<FromTarget>) {
        *self.agent.borrow_mut() = Some(sender);
        self.agent_kinds.set(0);
    }

    /// How many kinds of frames the agent knows, as it says.
    pub(crate) fn set_agent_kinds(&self, kinds: u32) {
        self.agent_kinds.set(kinds);
    }

    /// Whether the agent has said that it knows no reservations: it is of a release before.
    pub(crate) fn agent_lacks_reservations(&self) -> bool {
        (1..FromTarget::KINDS_OF_RESERVATIONS).contains(&self.agent_kinds.get())
    }

    pub(crate) fn tell(&self, message: FromTarget) {
        if let Some(agent) = &*self.agent.borrow()
            && agent.try_send(message).is_err()
        {
            tracing::warn!("the node agent does not take our messages");
        }
    }
}
