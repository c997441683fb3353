"""Whether a certificate and a key can serve TLS, found out before anything is loaded."""

from __future__ import annotations

import ssl
from pathlib import Path


def check_tls(certfile: Path, keyfile: Path, password: str | None) -> None:
    """Load both as the HTTP processes will.

    Raises
    ------
    ValueError
        Names the flag whose file is wrong, and what is wrong with it.
    """
    was_asked = False

    def give_password() -> str:  # without it OpenSSL would ask on the terminal, in every HTTP process
        nonlocal was_asked
        was_asked = True
        return password or ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(_explain(error, certfile, keyfile, was_asked=was_asked, password=password)) from error


def _explain(error: OSError, certfile: Path, keyfile: Path, *, was_asked: bool, password: str | None) -> str:
    for flag, path in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile)):
        try:
            path.read_bytes()
        except OSError as unreadable:
            return f"{flag}: cannot read {str(path)!r}: {unreadable.strerror}"
    if was_asked and password is None:
        return "--ssl-keyfile is encrypted: give --ssl-keyfile-password"
    if was_asked:
        return "--ssl-keyfile cannot be decrypted with --ssl-keyfile-password"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "--ssl-keyfile does not belong to the certificate in --ssl-certfile"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certfile)
    except ssl.SSLError:
        return f"--ssl-certfile: there is no PEM certificate in {str(certfile)!r}"
    return f"--ssl-keyfile: {str(keyfile)!r} cannot be used with that certificate: {error}"
