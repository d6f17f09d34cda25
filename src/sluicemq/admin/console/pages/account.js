// The account of the current user: permissions and password.

import { post } from "../api.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { button, emptyState, valueList, head, panel, badge } from "../parts.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";
import { permissionText } from "./users.js";

export const title = () => "Your account";

export function show() {
  if (!session.user) {
    return h(
      "div",
      { class: "page" },
      head("Your account"),
      panel(
        null,
        emptyState(
          "Not logged in",
          h("p", null, "This broker has no users, so no login is required and every operation is allowed."),
        ),
      ),
    );
  }
  const { user, superuser, permissions } = session;
  return h(
    "div",
    { class: "page" },
    head(h("span", { class: "name" }, user), {
      actions: [button("Change the password…", changePassword)],
    }),
    panel(
      "Permissions",
      superuser ? h("p", null, badge("superuser", "accent-alt"), " All operations are allowed.") : rights(permissions),
    ),
  );
}

function rights(permissions) {
  if (!permissions.length)
    return emptyState("No permissions", h("p", null, "A superuser can grant permissions."));
  return valueList(
    permissions.map((permission) => [
      h("code", null, permission.pattern),
      permissionText(permission).slice(permission.pattern.length + 2),
    ]),
  );
}

async function changePassword() {
  const done = await openForm({
    title: "Change your password",
    text: ["All other sessions of this user end."],
    fields: [
      {
        name: "current_password",
        label: "Current password",
        kind: "password",
        required: true,
        autocomplete: "current-password",
      },
      {
        name: "new_password",
        label: "New password",
        kind: "password",
        required: true,
        autocomplete: "new-password",
      },
    ],
    action: "Change",
    // the broker has started a new session with another secret
    async submit(typed) {
      session.set(await post("session/password", typed));
      session.notifyTabs();
    },
  });
  if (done) notify("Password changed");
}
