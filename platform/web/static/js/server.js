// Where the server is and how it knows that a request comes from its own page.

export function url(path) {
  return document.body.dataset.root + path;
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
