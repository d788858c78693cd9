// One request: a ticket to ask how far it is, and errors that say whether trying again makes sense.

export type Body = Record<string, unknown>;

export class Problem extends Error {
  // 0: no answer at all
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
  get temporary(): boolean {
    return this.status === 0 || this.status === 429 || this.status === 503 || this.status === 504;
  }
}

// A server that asks for a token (unpack serve --token) gets it with every request. It comes from
// the address once, as #token=T or ?token=T, and is taken out of it, so that no link gives it away;
// the browser's tab keeps it.
const KEPT_AS = 'unpack-token';
let token: string | null = null;

export function keepToken(given: string): void {
  token = given.trim();
  try {
    sessionStorage.setItem(KEPT_AS, token);
  } catch {
    // kept as long as the page, then
  }
}

export const hasToken = (): boolean => token !== null;

export function takeToken(): void {
  const hash = new URLSearchParams(location.hash.replace(/^#/, '')),
    search = new URLSearchParams(location.search);
  const given = hash.get('token') ?? search.get('token');
  if (given === null) {
    try {
      token = sessionStorage.getItem(KEPT_AS);
    } catch {
      // storage may be switched off
    }
    return;
  }
  keepToken(given);
  hash.delete('token');
  history.replaceState(null, '', `${location.pathname}#${hash}`);
}

export const GONE = 'the server does not answer; is unpack serve still running?';

export async function request(
  path: string,
  body: Body | null,
  signal: AbortSignal,
  ticket?: string,
): Promise<string> {
  const send = () =>
    fetch(path, {
      method: body ? 'POST' : 'GET',
      headers: {
        ...(body ? { 'Content-Type': 'application/json' } : {}),
        ...(ticket ? { 'X-Unpack-Ticket': ticket } : {}),
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
      },
      body: body ? JSON.stringify(body) : undefined,
      signal,
    });
  let response: Response;
  try {
    response = await send().catch(async (error) => {
      if (signal.aborted) throw error;
      // A connection that the browser kept open may have been closed at the other end: a new one
      // tells.
      await new Promise((done) => setTimeout(done, 100));
      return send();
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Problem(0, GONE);
  }
  let text = '';
  try {
    text = await response.text();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Problem(0, 'the server broke off in the middle of its answer');
  }
  if (response.ok) return text;
  let message = `the server answered ${response.status}`;
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // not one of our own answers: the status has to do
  }
  throw new Problem(response.status, message);
}

export const newTicket = (): string =>
  [...crypto.getRandomValues(new Uint8Array(12))]
    .map((byte) => byte.toString(16).padStart(2, '0'))
    .join('');

// For a single press of a button.
export async function once<T>(
  name: string,
  body: Body,
  signal: AbortSignal = new AbortController().signal,
): Promise<T> {
  return JSON.parse(await request(`/api/${name}`, body, signal)) as T;
}
