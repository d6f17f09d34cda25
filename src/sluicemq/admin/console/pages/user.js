// One user: rights, tokens and password.

import { get, post, put as send, remove } from "../api.js";
import { ask, show as tellAll } from "../dialogs.js";
import { h, put } from "../dom.js";
import { button, command, empty, facts, head, loading, panel, tag, when } from "../parts.js";
import { go } from "../router.js";
import { tell } from "../tell.js";
import { permissionText } from "./users.js";

const OPERATIONS = [
  ["browse", "see figures, settings and messages"],
  ["produce", "send messages"],
  ["consume", "receive, delete and move messages"],
  ["create", "declare it with settings"],
  ["delete", "remove it"],
  ["manage", "purge, pause and alter it"],
  ["list", "see it in lists, as with any of the others"],
];

export function show({ steps, signal }) {
  const name = steps[1];
  const content = h("div", { class: "page" });
  const actions = h("div", { class: "actions" });
  const top = head(h("span", { class: "name" }, name), {
    beside: h("p", { class: "about" }, h("a", { href: "#/users" }, "All users")),
  });
  top.append(actions);
  const path = `users/${encodeURIComponent(name)}`;
  const look = loading(
    content,
    async () => {
      const user = await get(path, {}, signal);
      put(actions, tools(user, path, look));
      put(content, view(user, path, look));
    },
    signal,
  );
  look();
  return h("div", { class: "page" }, top, content);
}

function tools(user, path, again) {
  return [
    button("Password…", () => setPassword(user.name, path, again)),
    button(user.superuser ? "No longer a superuser…" : "Make a superuser…", () =>
      setSuperuser(user, path, again),
    ),
    button("Delete…", () => destroy(user, path), { tone: "danger" }),
  ];
}

function view(user, path, again) {
  const { permissions = [], tokens = [], roles = [] } = user;
  return [
    panel(
      null,
      facts([
        [
          "Permissions",
          user.superuser ? tag("superuser: everything", "brass") : "those of the permissions below",
        ],
        ["Password", user.has_password ? "yes" : "none: only tokens admit it"],
        ["Roles", roles.join(", ") || "none"],
        ["Created", when(user.created * 1000)],
      ]),
    ),
    panel("Permissions", permissionList(user, permissions, path, again), {
      beside: button("Grant…", () => grant(user.name, path, again), { tone: "small" }),
    }),
    panel("Tokens", tokenList(user, tokens, path, again), {
      beside: button("New token…", () => makeToken(user.name, path, again), { tone: "small" }),
    }),
  ];
}

function row(content, ...tools) {
  return h("li", { class: "row" }, h("span", null, content), h("span", null, tools));
}

function permissionList(user, permissions, path, again) {
  if (!permissions.length) {
    return empty(
      "It has none of its own",
      h(
        "p",
        null,
        user.superuser
          ? "A superuser needs none."
          : "Without permissions a user sees and does nothing.",
      ),
    );
  }
  return h(
    "ul",
    { class: "rows" },
    permissions.map((one) =>
      row(
        h("code", null, permissionText(one)),
        button("Revoke…", () => withdraw(user.name, one, path, again), {
          tone: "quiet small",
          name: `Revoke ${permissionText(one)}…`,
        }),
      ),
    ),
  );
}

function tokenList(user, tokens, path, again) {
  if (!tokens.length) {
    return empty(
      "It has no tokens",
      h("p", null, "Programs show one instead of a password:"),
      command(`sluicemq users token add ${user.name} --label ci`),
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
          h("small", null, token.expires ? ["until ", when(token.expires * 1000)] : "for ever"),
        ],
        button("Revoke…", () => revoke(token, path, again), {
          tone: "quiet small",
          name: `Revoke ${token.label || token.id}…`,
        }),
      ),
    ),
  );
}

async function setPassword(name, path, again) {
  const done = await ask({
    title: `A new password for ${name}`,
    text: ["The old one no longer counts. Connections that are open stay."],
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
  if (done) tell(`${name} has a new password`);
  if (done) again();
}

async function setSuperuser({ name, superuser }, path, again) {
  const done = await ask({
    title: superuser ? `Take superuser rights from ${name}?` : `Make ${name} a superuser?`,
    text: [
      superuser
        ? "It may then do only what its permissions say."
        : "It may then do everything, with all messages and all users.",
    ],
    action: superuser ? "Take them" : "Make a superuser",
    tone: "danger",
    submit: () => send(path, { superuser: !superuser }, { query: { expect: "existing" } }),
  });
  if (done) again();
}

async function destroy({ name }, path) {
  const done = await ask({
    title: `Delete the user ${name}?`,
    text: [
      "Its password, tokens and permissions are deleted. Clients that use them can no longer log in.",
    ],
    fields: [
      { name: "force", label: "Force: delete the last superuser or user", kind: "check" },
    ],
    action: "Delete the user",
    tone: "danger",
    submit: ({ force }) => remove(path, force ? { force: "true" } : {}),
  });
  if (!done) return;
  tell(`The user ${name} is deleted`);
  go("#/users");
}

async function grant(name, path, again) {
  const done = await ask({
    title: `Grant permissions to ${name}`,
    fields: [
      {
        name: "pattern",
        label: "Destinations",
        required: true,
        maxlength: 256,
        placeholder: "orders.*",
        hint: "A name, in which * stands for anything.",
      },
      ...OPERATIONS.map(([operation, meaning]) => ({
        name: operation,
        label: `${operation}: ${meaning}`,
        kind: "check",
      })),
      {
        name: "ignore_case",
        label: "Ignore letter case of names (ignore_case)",
        kind: "check",
      },
    ],
    action: "Grant",
    submit({ pattern, ignore_case, ...ticked }) {
      const operations = Object.keys(ticked).filter((operation) => ticked[operation]);
      return send(`${path}/permissions`, { pattern, operations, ignore_case: Boolean(ignore_case) });
    },
  });
  if (!done) return;
  tell(`${name} has that permission`);
  again();
}

async function withdraw(name, { pattern, operations }, path, again) {
  const done = await ask({
    title: `Revoke a permission of ${name}?`,
    text: [
      `It may then no longer ${[...operations].join(", ")} with ${pattern}, unless a role permits it.`,
    ],
    action: "Revoke",
    tone: "danger",
    submit: () => remove(`${path}/permissions`, { pattern }),
  });
  if (done) again();
}

async function makeToken(name, path, again) {
  const made = await ask({
    title: `A token for ${name}`,
    fields: [
      { name: "label", label: "Label", maxlength: 100 },
      {
        name: "days",
        label: "Expires after (days)",
        kind: "number",
        min: 1,
        value: 90,
        hint: "Nothing: for ever",
      },
    ],
    action: "Create",
    submit({ label, days }) {
      const expires = days ? Math.floor(Date.now() / 1000) + days * 86_400 : 0;
      return post(`${path}/tokens`, { label, expires });
    },
  });
  if (!made) return;
  tellAll(
    "The token",
    h("p", null, "It is shown this once; the broker keeps only a trace of it."),
    command(made.token),
  );
  again();
}

async function revoke(token, path, again) {
  const done = await ask({
    title: `Revoke the token ${token.label || token.id}?`,
    text: ["The programs that show it cannot log in any more."],
    action: "Revoke",
    tone: "danger",
    submit: () => remove(`${path}/tokens/${encodeURIComponent(token.id)}`),
  });
  if (done) again();
}
