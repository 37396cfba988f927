"""What would become of a request, in words: for ``explain``, from what a running worker found and looked up."""

from __future__ import annotations

from sessionworkers.affinity.decide import Answer, Arrival, Claim, Names, claims_on_sight, decide
from sessionworkers.affinity.found import Found
from sessionworkers.affinity.ids import mask

WAYS = {
    Answer.HERE: "handled where it arrives",
    Answer.HOP: "carried to the worker that owns the session",
    Answer.GONE: "the rule's gone answer: the worker that held the session lives no more",
    Answer.CONFLICT: "refused (409): it names two different sessions",
    Answer.NOT_MINE: "refused: not mine",
}


def explain(found: Found, claim: Claim, owner: str | None, here: bool) -> dict[str, object]:
    """The decision as the router would make it. ``here``: the owner is the worker that was asked."""
    answer = decide(Arrival.PUBLIC, Names.AN_ID, claim, inferred=found.rule.inferred, start=found.start)
    carrier = found.rule.carriers[found.primary.carrier].word
    reasons = [f"rule {found.rule.name} finds the ID by {carrier}"]
    if found.start or found.end:
        reasons.append("it opens the session" if found.start else "it ends the session")
    if claim is Claim.NONE:
        on_sight = claims_on_sight(found, found.primary)
        reasons.append("nobody claims the ID" + (": claimed on sight" if on_sight else ": claimed if the app uses it"))
    else:
        reasons.append(f"the ID is claimed by {'a worker that lives' if claim is not Claim.GONE else 'a dead worker'}")
    return {
        "way": WAYS[answer],
        "reasons": reasons,
        "rule": found.rule.name,
        "carrier": carrier,
        "id": mask(found.primary.value),
        "claim": claim.value,
        "owner": owner,
        "here": here,
    }
