// List of users.

import { put as send } from "../api.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { List } from "../list.js";
import { button, command, emptyState, head, panel, badge } from "../parts.js";
import { go } from "../router.js";
import { session } from "../session.js";
import { show as showUser } from "./user.js";

export const title = ({ steps }) => (steps[1] ? `User ${steps[1]}` : "Users");

export function show(route) {
  if (route.steps[1]) return showUser(route);
  const list = new List({
    path: "users",
    interval: 10_000,
    table: { caption: "Users", stack: true, key: ({ name }) => name, columns: COLUMNS },
    emptyContent,
    signal: route.signal,
  });
  return h(
    "div",
    { class: "page" },
    head("Users", { actions: [button("Add a user…", add, { tone: "primary", disabledReason: denialReason() })] }),
    panel(null, list.element),
  );
}

/** Return the reason why no user can be added, or "". Without a login, only the command line can. */
export function denialReason() {
  return session.user ? "" : "the first user is added with sluicemq users add";
}

export function userHref(name) {
  return `#/users/${encodeURIComponent(name)}`;
}

/** Return a permission as text. */
export function permissionText({ pattern, operations, ignore_case: ignoreCase }) {
  const names = ignoreCase ? `${pattern} (any letter case)` : pattern;
  return `${names}: ${[...operations].sort().join(", ")}`;
}

const COLUMNS = [
  {
    key: "name",
    label: "Name",
    head: true,
    fingerprint: ({ name, superuser }) => `${name} ${superuser}`,
    show: ({ name, superuser }) => [
      h("a", { class: "name", href: userHref(name) }, name),
      superuser && badge("superuser", "accent-alt"),
    ],
  },
  {
    key: "has_password",
    label: "Password",
    rank: 2,
    show: ({ has_password: password }) => (password ? "yes" : "none"),
  },
  {
    key: "tokens",
    label: "Tokens",
    number: true,
    rank: 2,
    show: ({ tokens = [] }) => String(tokens.length),
  },
  { key: "roles", label: "Roles", rank: 2, show: ({ roles = [] }) => roles.join(", ") || "–" },
  {
    key: "permissions",
    label: "Permissions",
    fingerprint: (item) => JSON.stringify([item.permissions, item.superuser]),
    show: ({ permissions = [], superuser }) => {
      if (superuser) return "all operations";
      if (!permissions.length) return "–";
      return permissions.map((permission) => h("div", null, h("code", null, permissionText(permission))));
    },
  },
];

function emptyContent() {
  return emptyState(
    "No users",
    h(
      "p",
      null,
      "Without users, no login is required and every operation is allowed. The first user should be a superuser:",
    ),
    command("sluicemq users add anna --superuser"),
  );
}

async function add() {
  const added = await openForm({
    title: "Add a user",
    fields: [
      {
        name: "name",
        label: "Name",
        required: true,
        maxlength: 64,
        hint: "Letters, digits and - _ . @",
      },
      {
        name: "password",
        label: "Password",
        kind: "password",
        autocomplete: "new-password",
        hint: "If empty, the user can log in with tokens only.",
      },
      {
        name: "superuser",
        label: "Superuser",
        kind: "check",
      },
    ],
    action: "Add",
    async submit({ name, password, superuser }) {
      const body = { superuser, ...(password && { password }) };
      await send(`users/${encodeURIComponent(name)}`, body, { query: { expect: "new" } });
      return name;
    },
  });
  if (added) go(userHref(added));
}
