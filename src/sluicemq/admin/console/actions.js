// What can be done with messages of a destination: one call after the other until all is done, as
// the broker does no more in one than it can without keeping others waiting.

import { post } from "./api.js";
import { ask } from "./dialogs.js";
import { count, many } from "./format.js";
import { Place } from "./names.js";
import { tell } from "./tell.js";

const REASONS = {
  "not-found": "they were gone already",
  "in-flight": "a consumer has them",
  "in-transaction": "a transaction holds them",
  "no-origin": "they do not say where they came from",
  "origin-gone": "the destination they came from is gone",
  "low-disk-space": "the broker's disk is nearly full",
  "target-full": "the other destination is full",
  "too-large": "they are too large for the other destination",
  "target-refused": "the other destination refused them",
};

/**
 * Do it with all that `which` names: {ids: […]}, {selector: "…"} or {all: true}, and subscription and
 * state. Gives {processed, failed: [{id, reason}]}.
 */
export async function carryOut(place, action, which, target = null) {
  const total = { processed: 0, failed: [] };
  let after = null;
  do {
    const body = { action, ...which, ...(target && { target }), ...(after && { after }) };
    const answer = await post(place.full("/messages/actions"), body);
    total.processed += answer.processed;
    total.failed.push(...(answer.failed ?? []));
    after = answer.next ?? null;
  } while (after);
  return total;
}

/** What became of it, in words. */
export function outcome(verb, { processed, failed }) {
  const said = `${many(processed, "message")} ${verb}`;
  if (!failed.length) return said;
  const reasons = new Map();
  for (const { reason } of failed) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const told = [...reasons].map(
    ([reason, times]) => `${count(times)} because ${REASONS[reason] ?? reason}`,
  );
  return `${said}; not ${told.join(", ")}`;
}

function tellOutcome(verb, result) {
  tell(outcome(verb, result), result.failed.length ? "bad" : "good");
}

/** `what` names the messages ("3 messages", "all messages"), `which` as above. All give whether it
    was done. */
export async function deleteMessages(place, what, which) {
  const result = await ask({
    title: `Delete ${what} of ${place}?`,
    text: ["This cannot be undone: no consumer will receive them."],
    action: `Delete ${what}`,
    tone: "danger",
    submit: () => carryOut(place, "delete", which),
  });
  if (result) tellOutcome("deleted", result);
  return result !== null;
}

export async function transferMessages(place, action, what, which) {
  const verb = action === "move" ? "Move" : "Copy";
  const lost =
    action === "move" ? `They are then no longer in ${place}.` : `They stay in ${place}.`;
  const result = await ask({
    title: `${verb} ${what} of ${place}`,
    text: [lost],
    fields: [
      { name: "name", label: "Target", required: true },
      {
        name: "kind",
        label: "Destination type",
        kind: "choice",
        options: [
          ["queue", "queue"],
          ["topic", "topic"],
        ],
      },
    ],
    action: `${verb} ${what}`,
    submit: ({ name, kind }) => carryOut(place, action, which, new Place(kind, name).told()),
  });
  if (result) tellOutcome(action === "move" ? "moved" : "copied", result);
  return result !== null;
}

export async function redeliverMessages(place, what, which) {
  const result = await ask({
    title: `Deliver ${what} of ${place} again?`,
    text: [
      "What a consumer has and has not acknowledged is taken back from it and delivered again; what waits for a later time is delivered now.",
    ],
    action: `Deliver ${what} again`,
    submit: () => carryOut(place, "redeliver", which),
  });
  if (result) tellOutcome("made ready", result);
  return result !== null;
}

export async function returnMessages(place, what, which) {
  const result = await ask({
    title: `Send ${what} of ${place} back?`,
    text: ["Each goes to the queue it came from, as if it had never been delivered."],
    action: `Send ${what} back`,
    submit: () => carryOut(place, "redrive", which),
  });
  if (result) tellOutcome("sent back", result);
  return result !== null;
}
