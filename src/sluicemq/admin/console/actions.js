// Operations on messages of a destination. The broker limits the number of messages per request, so
// requests are repeated until all messages are processed.

import { post } from "./api.js";
import { ask } from "./dialogs.js";
import { count, plural } from "./format.js";
import { DestinationRef } from "./destination_ref.js";
import { notify } from "./notifications.js";

const REASONS = {
  "not-found": "they no longer exist",
  "in-flight": "a consumer has them unacked",
  "in-transaction": "they belong to an open transaction",
  "no-origin": "they have no original destination",
  "origin-gone": "the original destination no longer exists",
  "low-disk-space": "the broker's disk is nearly full",
  "target-full": "the target is full",
  "too-large": "they are too large for the target",
  "target-refused": "the target rejected them",
  forbidden: "you have no permission to publish to the original destination",
  damaged: "the journal cannot read them",
  "not-tried": "an earlier failure ended the operation",
};

/**
 * Do it with all that `which` names: {ids: […]}, {selector: "…"} or {all: true}, and subscription and
 * state. Gives {processed, failed: [{id, reason}]}.
 */
export async function carryOut(place, action, which, target = null) {
  const total = { processed: 0, failed: [] };
  let cursor = null;
  do {
    const body = { action, ...which, ...(target && { target }), ...(cursor && { cursor }) };
    const answer = await post(place.full("/messages/actions"), body);
    total.processed += answer.processed;
    total.failed.push(...(answer.failed ?? []));
    cursor = answer.next_cursor;
  } while (cursor);
  return total;
}

/** Describe the result of an operation. */
export function outcome(verb, { processed, failed }) {
  const summary = `${plural(processed, "message")} ${verb}`;
  if (!failed.length) return summary;
  const reasons = new Map();
  for (const { reason } of failed) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const skipped = [...reasons].map(
    ([reason, times]) => `${count(times)} because ${REASONS[reason] ?? reason}`,
  );
  return `${summary}; skipped: ${skipped.join(", ")}`;
}

function notifyOutcome(verb, result) {
  notify(outcome(verb, result), result.failed.length ? "bad" : "good");
}

/** `what` names the messages ("3 messages", "all messages"), `which` as above. All give whether it
    was done. */
export async function deleteMessages(place, what, which, verb = "Delete") {
  const result = await ask({
    title: `${verb} ${what} of ${place}?`,
    text: ["They are deleted permanently and not delivered to any consumer."],
    action: `${verb} ${what}`,
    tone: "danger",
    submit: () => carryOut(place, "delete", which),
  });
  if (result) notifyOutcome(verb === "Purge" ? "purged" : "deleted", result);
  return result !== null;
}

export async function transferMessages(place, action, what, which) {
  const verb = action === "move" ? "Move" : "Copy";
  const lost =
    action === "move" ? `They are removed from ${place}.` : `They also stay in ${place}.`;
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
    submit: ({ name, kind }) => carryOut(place, action, which, new DestinationRef(kind, name).toBody()),
  });
  if (result) notifyOutcome(action === "move" ? "moved" : "copied", result);
  return result !== null;
}

export async function redeliverMessages(place, what, which) {
  const result = await ask({
    title: `Redeliver ${what} of ${place}?`,
    text: [
      "Unacked messages are requeued and delivered again; scheduled messages become ready now.",
    ],
    action: `Redeliver ${what}`,
    submit: () => carryOut(place, "redeliver", which),
  });
  if (result) notifyOutcome("made ready", result);
  return result !== null;
}

export async function returnMessages(place, what, which) {
  const result = await ask({
    title: `Redrive ${what} of ${place}?`,
    text: ["Each message is moved to its original destination with its delivery attempts reset."],
    action: `Redrive ${what}`,
    submit: () => carryOut(place, "redrive", which),
  });
  if (result) notifyOutcome("redriven", result);
  return result !== null;
}
