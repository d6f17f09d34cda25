// The user who is logged in, and its permissions.
//
// The broker decides; the checks here only disable what the broker would reject. A
// pattern is read as the broker reads it (model/access.py): `*` is any run of characters.

const listeners = new Set();
/** Connects the tabs of a browser, which share the session's cookie. */
const tabs = new BroadcastChannel(`sluicemq.session ${location.pathname}`);

function matches(permission, destination) {
  const caseless = permission.ignore_case;
  const pattern = caseless ? permission.pattern.toLowerCase() : permission.pattern;
  const name = caseless ? destination.toLowerCase() : destination;
  const parts = pattern.split("*");
  if (parts.length === 1) return pattern === name;
  const first = parts.shift();
  const last = parts.pop();
  if (!name.startsWith(first)) return false;
  let start = first.length;
  for (const part of parts) {
    const position = name.indexOf(part, start);
    if (position < 0) return false;
    start = position + part.length;
  }
  return name.length - last.length >= start && name.endsWith(last);
}

export const session = {
  user: "",
  superuser: false,
  csrfToken: "",
  permissions: [],
  known: false,

  /** Store the session that the API has returned. */
  set({ user = "", superuser = false, csrf_token: csrfToken = "", permissions = [] }) {
    Object.assign(this, { user, superuser, csrfToken, permissions, known: true });
  },

  /** Inform the other tabs that a login or logout has replaced the session. */
  notifyTabs() {
    tabs.postMessage("replaced");
  },

  /** Call back when another tab has replaced the session. */
  onReplaced(listener) {
    tabs.addEventListener("message", () => listener());
  },

  /** Forget the session, and call the listeners, which open the login page. */
  end(reason) {
    this.known = false;
    this.csrfToken = "";
    for (const listener of listeners) listener(reason);
  },

  /** Call back when the session has ended. */
  onEnd(listener) {
    listeners.add(listener);
  },

  /** Return whether the user may perform the operation ("produce", …) on the destination. */
  may(operation, name) {
    if (this.superuser) return true;
    return this.permissions.some(
      (permission) => permission.operations.includes(operation) && matches(permission, name),
    );
  },

  /** Return whether the user may perform the operation on any destination. */
  mayAnywhere(operation) {
    return this.superuser || this.permissions.some((p) => p.operations.includes(operation));
  },

  /** Return the reason why the user may not perform the operation, for a tooltip; "" if it may. */
  denialReason(operation, name) {
    if (this.may(operation, name)) return "";
    return `${this.user} has no permission to ${operation} here`;
  },
};
