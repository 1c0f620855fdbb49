//! Checks: one key or many of a policy that limits how often.

use admittance::{Axis, Cost, Decided, Decision, Source};

use super::{Answer, BATCH_MAX, Operation, Policy, Refusal, Service, bounded, many};

impl Service {
    /// Decides one request.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long.
    pub async fn check(&self, policy: &str, key: &str, cost: Cost) -> Result<Decided, Refusal> {
        let Answer { decided, source, .. } = self.check_answer(policy, key, cost).await?;
        Ok(Decided { decision: decided, source })
    }

    /// The same, with whether the policy would have denied if it refuses nobody.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn check_answer(
        &self,
        policy: &str,
        key: &str,
        cost: Cost,
    ) -> Result<Answer<Decision>, Refusal> {
        let policy = &*self.policy(policy)?;
        let key = bounded(key)?;
        let watching = self.watching(policy);
        let observed = self.counts.observe(policy, Operation::Check);
        let (Decided { mut decision, source }, is_shed) = self.checked(policy, key, cost).await?;
        if !is_shed {
            self.checked_beside(policy, key, cost, (decision.is_admit(), source));
        }
        let is_shadow_denied = !is_shed && policy.shadows.admit(&mut decision);
        let axis = if is_shed { Axis::Load } else { Axis::Rate };
        observed.decided(key, &Decided { decision, source }, axis);
        watching.saw(key, &decision, is_shed.then_some(Axis::Load));
        Ok(Answer { decided: decision, source, is_shadow_denied })
    }

    /// What was decided, and whether by load.
    async fn checked(
        &self,
        policy: &Policy,
        key: &str,
        cost: Cost,
    ) -> Result<(Decided, bool), Refusal> {
        if policy.is_load_only() {
            let unlimited = Decided { decision: self.unlimited(), source: Source::Node };
            return Ok((self.shed(policy, key)?.unwrap_or(unlimited), true));
        }
        let rate = policy.rate(Operation::Check)?;
        if let Some(denied) = self.shed(policy, key)? {
            return Ok((denied, true));
        }
        self.work();
        let decided = rate.check(key.as_bytes(), cost).await;
        Ok((decided.map_err(|error| policy.failed(error))?, false))
    }

    /// Decides a request for each key, all at one instant.
    ///
    /// # Errors
    /// An unknown policy, too many keys, a key that is too long; then none is charged.
    pub async fn check_many(
        &self,
        policy: &str,
        keys: &[String],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source), Refusal> {
        let answer = self.check_many_answer(policy, keys, cost).await?;
        Ok((answer.decided, answer.source))
    }

    /// The same, with whether the policy would have denied any of them if it refuses nobody.
    ///
    /// # Errors
    /// As [`check_many`](Self::check_many).
    pub async fn check_many_answer(
        &self,
        policy: &str,
        keys: &[String],
        cost: Cost,
    ) -> Result<Answer<Vec<Decision>>, Refusal> {
        let policy = &*self.policy(policy)?;
        if keys.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLong { length: keys.len() });
        }
        for key in keys {
            bounded(key)?;
        }
        let watching = self.watching(policy);
        let observed = self.counts.observe(policy, Operation::CheckMany);
        let (mut decided, source, shed) = self.checked_many(policy, keys, cost).await?;
        let is_shadow_denied =
            self.many_beside(policy, keys, cost, (&mut decided, source, shed.as_deref()));
        let shed = shed.unwrap_or_default();
        let count = shed.iter().filter(|is_shed| **is_shed).count();
        observed.many(keys, (&decided, source), count);
        watching.saw_many(keys, &decided, &shed);
        Ok(Answer { decided, source, is_shadow_denied })
    }

    async fn checked_many(
        &self,
        policy: &Policy,
        keys: &[String],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source, Shed), Refusal> {
        let unlimited = || vec![self.unlimited(); keys.len()];
        if policy.is_load_only() {
            let Some(denied) = self.shed_many(policy, keys)? else {
                return Ok((unlimited(), Source::Node, None));
            };
            let shed = Some(many::is_denied(&denied));
            return Ok((many::merged(denied, unlimited()), Source::Node, shed));
        }
        let rate = policy.rate(Operation::CheckMany)?;
        let Some(denied) = self.shed_many(policy, keys)? else {
            let decided = rate.check_many(keys, cost).await;
            let decided = decided.map_err(|why| policy.unanswered(why, Operation::CheckMany));
            return decided.map(|(decisions, source)| (decisions, source, None));
        };
        let kept: Vec<_> = many::kept(&denied, keys).collect();
        let decided = rate.check_many(&kept, cost).await;
        let decided = decided.map_err(|why| policy.unanswered(why, Operation::CheckMany));
        let (decisions, source) = decided?;
        let shed = Some(many::is_denied(&denied));
        Ok((many::merged(denied, decisions), source.max(Source::Node), shed))
    }
}

/// Which keys of a batch were denied by load, if any was.
type Shed = Option<Vec<bool>>;
