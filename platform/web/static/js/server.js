// Where the server is and how it knows that a request comes from its own page.

const { root, tenant } = document.body.dataset;

// Of what this page asks for: the tenant that the operator looks at stays.
export function url(path) {
  const address = new URL(root + path, location.origin);
  if (tenant) address.searchParams.set("tenant", tenant);
  return address.pathname + address.search + address.hash;
}

// As clients elsewhere reach the server.
export function publicAddress(path) {
  return location.origin + root + path;
}

export function csrfHeader() {
  return { "x-csrf-token": document.querySelector('meta[name="csrf-token"]').content };
}

export function reasonOf(text, status) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${status}.`;
  }
}
