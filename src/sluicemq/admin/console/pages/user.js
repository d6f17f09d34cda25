// One user: permissions, tokens and password.

import { ApiError, get, post, put as send, remove } from "../api.js";
import { quoted } from "../commands.js";
import { openForm, showDialog } from "../dialogs.js";
import { h, replaceContent } from "../dom.js";
import { button, command, emptyState, valueList, head, loading, panel, badge, timeElement } from "../parts.js";
import { go } from "../router.js";
import { notify } from "../notifications.js";
import { permissionText } from "./users.js";

const OPERATIONS = [
  ["browse", "see statistics, settings and messages"],
  ["produce", "publish messages"],
  ["consume", "receive, delete and move messages"],
  ["create", "create destinations"],
  ["delete", "delete destinations"],
  ["manage", "purge, pause and change settings"],
  ["list", "see destinations in lists (implied by all others)"],
];

export function show({ steps, signal }) {
  const name = steps[1];
  const content = h("div", { class: "page" });
  const actions = h("div", { class: "actions" });
  const top = head(h("span", { class: "name" }, name), {
    aside: h("p", { class: "about" }, h("a", { href: "#/users" }, "All users")),
  });
  top.append(actions);
  const path = `users/${encodeURIComponent(name)}`;
  const refresh = loading(
    content,
    async () => {
      const user = await get(path, {}, signal);
      replaceContent(actions, tools(user, path, refresh));
      replaceContent(content, view(user, path, refresh));
    },
    signal,
  );
  refresh();
  return h("div", { class: "page" }, top, content);
}

function tools(user, path, refresh) {
  return [
    button("Password…", () => setPassword(user.name, path, refresh)),
    button(user.superuser ? "Revoke superuser…" : "Grant superuser…", () =>
      setSuperuser(user, path, refresh),
    ),
    button("Delete…", () => deleteUser(user, path), { tone: "danger" }),
  ];
}

function view(user, path, refresh) {
  const { permissions = [], tokens = [], roles = [] } = user;
  return [
    panel(
      null,
      valueList([
        [
          "Permissions",
          user.superuser ? badge("superuser: all operations", "accent-alt") : "see below",
        ],
        ["Password", user.has_password ? "yes" : "none; only tokens can be used to log in"],
        ["Roles", roles.join(", ") || "none"],
        ["Created", timeElement(user.created)],
      ]),
    ),
    panel("Permissions", permissionList(user, permissions, path, refresh), {
      aside: button("Grant…", () => grantPermission(user.name, path, refresh), { tone: "small" }),
    }),
    panel("Tokens", tokenList(user, tokens, path, refresh), {
      aside: button("New token…", () => createToken(user.name, path, refresh), { tone: "small" }),
    }),
  ];
}

function row(content, ...tools) {
  return h("li", { class: "row" }, h("span", null, content), h("span", null, tools));
}

function permissionList(user, permissions, path, refresh) {
  if (!permissions.length) {
    return emptyState(
      "No permissions",
      h(
        "p",
        null,
        user.superuser
          ? "A superuser needs no permissions."
          : "Without permissions a user cannot see or change anything.",
      ),
    );
  }
  return h(
    "ul",
    { class: "rows" },
    permissions.map((permission) =>
      row(
        h("code", null, permissionText(permission)),
        button("Revoke…", () => revokePermission(user.name, permission, path, refresh), {
          tone: "quiet small",
          name: `Revoke ${permissionText(permission)}…`,
        }),
      ),
    ),
  );
}

function tokenList(user, tokens, path, refresh) {
  if (!tokens.length) {
    return emptyState(
      "No tokens",
      h("p", null, "Programs log in with a token instead of a password:"),
      command(`sluicemq users token add ${quoted(user.name)} --label ci`),
    );
  }
  return h(
    "ul",
    { class: "rows" },
    tokens.map((token) =>
      row(
        [
          token.label || token.id,
          " ",
          h("small", null, token.expires ? ["expires ", timeElement(token.expires)] : "does not expire"),
        ],
        button("Revoke…", () => revokeToken(token, path, refresh), {
          tone: "quiet small",
          name: `Revoke ${token.label || token.id}…`,
        }),
      ),
    ),
  );
}

async function setPassword(name, path, refresh) {
  const done = await openForm({
    title: `Change the password of ${name}`,
    text: ["The old password becomes invalid. Open connections are kept."],
    fields: [
      {
        name: "password",
        label: "New password",
        kind: "password",
        required: true,
        autocomplete: "new-password",
      },
    ],
    action: "Save",
    submit: ({ password }) => send(path, { password }, { query: { expect: "existing" } }),
  });
  if (done) notify(`Password of ${name} changed`);
  if (done) refresh();
}

async function setSuperuser({ name, superuser }, path, refresh) {
  const done = await openForm({
    title: superuser ? `Revoke superuser from ${name}?` : `Grant superuser to ${name}?`,
    text: [
      superuser
        ? "The user keeps its permissions."
        : "The user may then perform all operations and manage users.",
    ],
    action: superuser ? "Revoke" : "Grant",
    tone: "danger",
    submit: () => send(path, { superuser: !superuser }, { query: { expect: "existing" } }),
  });
  if (done) refresh();
}

async function deleteUser({ name }, path) {
  const done = await openForm({
    title: `Delete the user ${name}?`,
    text: [
      "Its password, tokens and permissions are deleted permanently.",
    ],
    fields: [
      { name: "force", label: "Force: delete the last superuser or user", kind: "check" },
    ],
    action: "Delete the user",
    tone: "danger",
    submit: ({ force }) => remove(path, force ? { force: "true" } : {}),
  });
  if (!done) return;
  notify(`User ${name} deleted`);
  go("#/users");
}

async function grantPermission(name, path, refresh) {
  const done = await openForm({
    title: `Grant a permission to ${name}`,
    fields: [
      {
        name: "pattern",
        label: "Destinations",
        required: true,
        maxlength: 256,
        placeholder: "orders.*",
        hint: "A destination name; * matches any characters.",
      },
      ...OPERATIONS.map(([operation, meaning]) => ({
        name: operation,
        key: "",
        label: `${operation}: ${meaning}`,
        kind: "check",
      })),
      {
        name: "ignore_case",
        key: "",
        label: "Ignore letter case of names (ignore_case)",
        kind: "check",
      },
    ],
    action: "Grant",
    submit({ pattern, ignore_case, ...checked }) {
      const operations = Object.keys(checked).filter((operation) => checked[operation]);
      if (!operations.length) throw new ApiError(0, "no-operation", "Select at least one operation.");
      return send(`${path}/permissions`, { pattern, operations, ignore_case: Boolean(ignore_case) });
    },
  });
  if (!done) return;
  notify(`Permission granted to ${name}`);
  refresh();
}

async function revokePermission(name, { pattern, operations }, path, refresh) {
  const done = await openForm({
    title: `Revoke a permission of ${name}?`,
    text: [
      `${name} loses ${[...operations].join(", ")} on ${pattern} unless a role grants it.`,
    ],
    action: "Revoke",
    tone: "danger",
    submit: () => remove(`${path}/permissions`, { pattern }),
  });
  if (done) refresh();
}

async function createToken(name, path, refresh) {
  const created = await openForm({
    title: `Create a token for ${name}`,
    fields: [
      { name: "label", label: "Label", maxlength: 100 },
      {
        name: "days",
        key: "expires",
        label: "Expires after (days)",
        kind: "number",
        min: 1,
        max: 36_500,
        value: 90,
        hint: "If empty, the token does not expire.",
      },
    ],
    action: "Create",
    submit({ label, days }) {
      const expires = days ? Date.now() + days * 86_400_000 : 0;
      return post(`${path}/tokens`, { label, expires });
    },
  });
  if (!created) return;
  showDialog(
    "New token",
    h("p", null, "Copy the token now: it is not shown again."),
    command(created.token),
  );
  refresh();
}

async function revokeToken(token, path, refresh) {
  const done = await openForm({
    title: `Revoke the token ${token.label || token.id}?`,
    text: ["Programs that use it can no longer log in."],
    action: "Revoke",
    tone: "danger",
    submit: () => remove(`${path}/tokens/${encodeURIComponent(token.id)}`),
  });
  if (done) refresh();
}
