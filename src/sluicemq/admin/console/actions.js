// Operations on messages of a destination. The broker limits the number of messages per request, so
// requests are repeated until all messages are processed.

import { ApiError, LONG_TIMEOUT_MS, post } from "./api.js";
import { openForm } from "./dialogs.js";
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
 * Apply an action to the selected messages, and return {processed, failed: [{id, reason}], stopped}.
 *
 * `selection` is {ids: […]}, {selector: "…"} or {all: true}, with an optional subscription and state.
 * After `signal` is aborted or a later request has failed, the remaining messages are not processed, and
 * `stopped` is the reason.
 */
export async function applyAction(destination, action, selection, signal, target = null) {
  const total = { processed: 0, failed: [], stopped: "" };
  let cursor = null;
  do {
    const body = { action, ...selection, ...(target && { target }), ...(cursor && { cursor }) };
    let answer;
    try {
      answer = await post(destination.full("/messages/actions"), body, { timeout: LONG_TIMEOUT_MS });
    } catch (error) {
      if (!cursor || !(error instanceof ApiError)) throw error;
      total.stopped = error.message;
      break;
    }
    total.processed += answer.processed;
    total.failed.push(...(answer.failed ?? []));
    cursor = answer.next_cursor;
    if (cursor && signal.aborted) total.stopped = "cancelled";
  } while (cursor && !total.stopped);
  return total;
}

/** Describe the result of an operation. */
export function resultText(verb, { processed, failed, stopped }) {
  const messages = `${plural(processed, "message")} ${verb}`;
  const summary = stopped ? `${messages}; stopped before the others: ${stopped}` : messages;
  if (!failed.length) return summary;
  const reasons = new Map();
  for (const { reason } of failed) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const skipped = [...reasons].map(
    ([reason, times]) => `${count(times)} because ${REASONS[reason] ?? reason}`,
  );
  return `${summary}; skipped: ${skipped.join(", ")}`;
}

function notifyResult(verb, result) {
  notify(resultText(verb, result), result.failed.length || result.stopped ? "bad" : "good");
}

// The functions below ask for confirmation and return whether the action was applied. `messages`
// describes the messages ("3 messages", "all messages"), `selection` is that of `applyAction`.

export async function deleteMessages(destination, messages, selection, verb = "Delete") {
  const result = await openForm({
    title: `${verb} ${messages} of ${destination}?`,
    text: ["They are deleted permanently and not delivered to any consumer."],
    action: `${verb} ${messages}`,
    tone: "danger",
    submit: (_, signal) => applyAction(destination, "delete", selection, signal),
  });
  if (result) notifyResult(verb === "Purge" ? "purged" : "deleted", result);
  return result !== null;
}

export async function transferMessages(destination, action, messages, selection) {
  const verb = action === "move" ? "Move" : "Copy";
  const consequence =
    action === "move" ? `They are removed from ${destination}.` : `They also stay in ${destination}.`;
  const result = await openForm({
    title: `${verb} ${messages} of ${destination}`,
    text: [consequence],
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
    action: `${verb} ${messages}`,
    submit: ({ name, kind }, signal) =>
      applyAction(destination, action, selection, signal, new DestinationRef(kind, name).toBody()),
  });
  if (result) notifyResult(action === "move" ? "moved" : "copied", result);
  return result !== null;
}

export async function redeliverMessages(destination, messages, selection) {
  const result = await openForm({
    title: `Redeliver ${messages} of ${destination}?`,
    text: [
      "Unacked messages are requeued and delivered again; scheduled messages become ready now.",
    ],
    action: `Redeliver ${messages}`,
    submit: (_, signal) => applyAction(destination, "redeliver", selection, signal),
  });
  if (result) notifyResult("redelivered", result);
  return result !== null;
}

export async function redriveMessages(destination, messages, selection) {
  const result = await openForm({
    title: `Redrive ${messages} of ${destination}?`,
    text: ["Each message is moved to its original destination with its delivery attempts reset."],
    action: `Redrive ${messages}`,
    submit: (_, signal) => applyAction(destination, "redrive", selection, signal),
  });
  if (result) notifyResult("redriven", result);
  return result !== null;
}
