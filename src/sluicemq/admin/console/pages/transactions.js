// Open transactions, and prepared ones, which wait for the decision of their transaction manager.

import { post } from "../api.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { List } from "../list.js";
import { button, emptyState, head, panel, badge, timeElement } from "../parts.js";
import { notify } from "../notifications.js";

export const title = () => "Transactions";

export function show({ signal }) {
  const list = new List({
    path: "transactions",
    sort: "started",
    table: {
      caption: "Transactions",
      stack: true,
      key: ({ id }) => id,
      columns: columns((...all) => decide(list, ...all)),
    },
    emptyContent: () =>
      emptyState(
        "There are no transactions",
        h(
          "p",
          null,
          "Open transactions of JMS clients are listed here. A prepared transaction that its transaction manager has lost can be committed or rolled back by hand.",
        ),
      ),
    signal,
  });
  return h("div", { class: "page" }, head("Transactions"), panel(null, list.element));
}

const WARNING =
  "Check the transaction manager first: if it decides otherwise later, the outcomes are inconsistent.";

/** Return an X/Open transaction id as text. */
function xidText(xid) {
  return xid ? `${xid.format_id}:${xid.global_transaction_id}:${xid.branch_qualifier}` : "–";
}

function columns(ondecide) {
  return [
    { key: "id", label: "ID", head: true, show: ({ id }) => String(id) },
    {
      key: "state",
      label: "State",
      fingerprint: ({ state }) => state,
      show: ({ state }) => badge(state, state === "prepared" ? "accent-alt" : ""),
    },
    {
      key: "xid",
      label: "Global transaction ID",
      rank: 2,
      fingerprint: ({ xid }) => xidText(xid),
      show: ({ xid }) => h("code", null, xidText(xid)),
    },
    { key: "protocol", label: "Protocol", rank: 2, show: ({ protocol }) => protocol },
    { key: "owner", label: "Owner", rank: 2, show: ({ owner }) => owner ?? "–" },
    {
      key: "publishes",
      label: "Publishes",
      number: true,
      show: ({ publishes }) => count(publishes),
    },
    { key: "acks", label: "Acknowledgements", number: true, show: ({ acks }) => count(acks) },
    {
      key: "started",
      label: "Started",
      rank: 2,
      fingerprint: ({ started }) => String(started),
      show: ({ started }) => timeElement(started),
    },
    {
      key: "actions",
      label: "Actions",
      hidden: true,
      number: true,
      fingerprint: ({ state }) => state,
      show: (item, latest) => [
        item.state === "prepared" &&
          button("Commit…", () => ondecide(latest(), "commit"), {
            tone: "quiet small",
            name: `Commit ${item.id}…`,
          }),
        button("Roll back…", () => ondecide(latest(), "rollback"), {
          tone: "quiet small",
          name: `Roll ${item.id} back…`,
        }),
      ],
    },
  ];
}

async function decide(list, { id, state, publishes, acks }, verdict) {
  const commit = verdict === "commit";
  const text = commit
    ? `${plural(publishes, "published message")} will become ready, and ${plural(acks, "message")} will be acknowledged.`
    : `${plural(publishes, "published message")} will be discarded, and ${plural(acks, "message")} will be requeued.`;
  const done = await openForm({
    title: commit ? `Commit transaction ${id}?` : `Roll transaction ${id} back?`,
    text: [text, state === "prepared" ? WARNING : "The client gets an error when it commits."],
    action: commit ? "Commit" : "Roll back",
    tone: "danger",
    submit: () => post(`transactions/${encodeURIComponent(id)}/${verdict}`),
  });
  if (!done) return;
  notify(`Transaction ${id} ${commit ? "committed" : "rolled back"}`);
  list.refresh();
}
