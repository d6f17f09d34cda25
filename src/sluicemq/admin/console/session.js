// The user who is logged in, and its permissions.
//
// The broker decides; the checks here only disable what the broker would reject. A
// pattern is read as the broker reads it (model/access.py): `*` is any run of characters.

const listeners = new Set();

function matches(permission, destination) {
  const caseless = permission.ignore_case;
  const pattern = caseless ? permission.pattern.toLowerCase() : permission.pattern;
  const name = caseless ? destination.toLowerCase() : destination;
  const parts = pattern.split("*");
  if (parts.length === 1) return pattern === name;
  const first = parts.shift();
  const last = parts.pop();
  if (!name.startsWith(first)) return false;
  let at = first.length;
  for (const part of parts) {
    const found = name.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return name.length - last.length >= at && name.endsWith(last);
}

export const session = {
  user: "",
  superuser: false,
  csrfToken: "",
  permissions: [],
  known: false,

  /** Store the session that the API has returned. */
  take({ user = "", superuser = false, csrf_token: csrfToken = "", permissions = [] }) {
    Object.assign(this, { user, superuser, csrfToken, permissions, known: true });
  },

  /** End the session; the listeners open the login page. */
  lost(reason) {
    this.known = false;
    this.csrfToken = "";
    for (const listener of listeners) listener(reason);
  },

  /** Call back when a request was rejected because the session has ended. */
  onLost(listener) {
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

  /** Return the reason why the user may not, for a tooltip; "" if the user may. */
  denialReason(operation, name) {
    if (this.may(operation, name)) return "";
    return `${this.user} has no permission to ${operation} here`;
  },
};
