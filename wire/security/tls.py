"""TLS between nodes: 1.3 only, both sides with a certificate of the mesh, and what a failed handshake means in words.

Contexts read their files again while in use (`reload`): a renewed certificate and a new revocation list hold for the
next handshake, and links that stand are not touched.  This file alone knows ssl; it does not know HTTP, nor who makes
sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ConnectFailed, MeshError, NotTrusted, ProtocolError
from .certificates import (
    Member,
    NodeKey,
    certificate_pem,
    key_of_certificate,
    key_of_secret,
    member_of,
    own_certificate,
)

TLSContext = ssl.SSLContext

_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which ssl has no name for


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The files in which TLS finds what it needs, all PEM: `trust` holds the authority's certificate and the revocation
    list."""

    key: Path
    certificate: Path
    trust: Path


def server_context(files: TLSFiles) -> TLSContext:
    """The context for accepting links: a caller without a certificate of the mesh never gets a byte through."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _checking_revocations(context, files)


def client_context(files: TLSFiles) -> TLSContext:
    """The context for dialling as a member; the server's name to ask for is one of those in `certificates`."""
    return _checking_revocations(_context(ssl.PROTOCOL_TLS_CLIENT), files)


def join_server_context(files: TLSFiles) -> TLSContext:
    """The context for the join port: callers have no certificate yet, or one of this mesh that may have run out
    meanwhile."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _NO_CHECK_TIME
    return _checking_revocations(context, files)


def join_client_context(authority: bytes) -> TLSContext:
    """The context for calling a join port without a certificate, once its authority is known; ask for
    `certificates.JOIN_NAME`."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority)
    return context


def web_context(certificate: Path, key: Path) -> TLSContext:
    """The context for answering browsers and other programs, by files of the user; ConfigError if they are no good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    reload_web(context, certificate, key)
    return context


def reload_web(context: TLSContext, certificate: Path, key: Path) -> None:
    """Read the files of a `web_context` again; they hold for the next handshake."""
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{certificate} and {key} are no certificate and its key", cause=str(error)) from None


def unverified_context() -> TLSContext:
    """The context for asking a stranger for its authority's certificate, which is then compared with the token's."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class NodeSocket(ssl.SSLSocket):
    """A connection within mutual TLS, for code that reads and writes it itself."""

    NOT_YET = (ssl.SSLWantReadError, ssl.SSLWantWriteError)  # raised where other sockets raise BlockingIOError

    @property
    def names(self) -> tuple[str, ...]:
        """The name and role that the other end's certificate has."""
        alternatives: Any = (self.getpeercert() or {}).get("subjectAltName", ())
        return tuple(name for kind, name in alternatives if kind == "DNS")


def secured(sock: socket.socket, files: TLSFiles, name: str, accepting: bool) -> NodeSocket:
    """TLS over a connected socket with the node whose certificate has this name (`certificates.server_name`), and no
    other member; with any of them where a caller's name is "".  OSError for all others."""
    context = server_context(files) if accepting else client_context(files)
    context.sslsocket_class = NodeSocket
    node_socket = context.wrap_socket(sock, server_side=accepting, server_hostname=None if accepting else name)
    assert isinstance(node_socket, NodeSocket)
    if name not in ("", *node_socket.names):  # a client has asked for it already
        node_socket.close()
        raise PermissionError("another node of the mesh called than the one that should")
    return node_socket


def secured_by_key(sock: socket.socket, secret: bytes, accepting: bool, folder: Path) -> NodeSocket:
    """TLS over a connected socket with the one process that knows the secret of this connection, too.

    The accepting end shows the certificate that follows from the secret, and the other end takes no other key: who
    accepts is proven, and the dialer is not.  OSError for all others.  A file in `folder` has the key for a moment.
    """
    key = key_of_secret(secret)
    context = _context(ssl.PROTOCOL_TLS_SERVER if accepting else ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = NodeSocket
    if accepting:
        handle, name = tempfile.mkstemp(dir=folder)  # of mode 0600; ssl reads keys from files alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key.pem() + certificate_pem(own_certificate(key, time.time())))
            context.load_cert_chain(name)
        finally:
            os.unlink(name)
    else:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what is checked is the key, below
    node_socket = context.wrap_socket(sock, server_side=accepting)
    assert isinstance(node_socket, NodeSocket)
    if not accepting and not _shows(node_socket, key):
        node_socket.close()
        raise PermissionError("the process that answered does not know the key")
    return node_socket


def _shows(connection: ssl.SSLSocket, key: NodeKey) -> bool:
    """Whether the other end showed the certificate of this key; what else it showed may be no node's at all."""
    try:
        return key_of_certificate(connection.getpeercert(binary_form=True) or b"").node_id == key.node_id
    except ProtocolError:
        return False


def reload(context: TLSContext, files: TLSFiles) -> None:
    """Read key, certificate, authority and revocation list again; ConfigError if they cannot be used."""
    try:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(cafile=files.trust)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the certificate {files.certificate}", cause=str(error)) from None


def drop(transport: asyncio.WriteTransport) -> None:
    """Abort a connection, TLS or not; in Python 3.11.2 the transport of a TLS connection that has ended cannot."""
    with contextlib.suppress(AttributeError):
        transport.abort()


def peer_certificate(transport: asyncio.BaseTransport | asyncio.StreamWriter) -> bytes:
    """The certificate (DER) of the other end of a TLS connection, b"" if it showed none."""
    ssl_object = transport.get_extra_info("ssl_object")
    return (ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None) or b""


def peer_member(transport: asyncio.BaseTransport | asyncio.StreamWriter) -> Member:
    """The member at the other end of a mutual TLS connection, as its certificate says."""
    certificate = peer_certificate(transport)
    if not certificate:
        raise ProtocolError("the other end showed no certificate")
    return member_of(certificate)


# -- failures in words -------------------------------------------------------------------------------------

_UNKNOWN = (
    "belongs to another mesh, or to this one by an authority that this node does not know",
    "Check the address; if it is right, join again with a new token, made there with: mesh-coord token create",
)

# What OpenSSL's verification found wrong with the other side's certificate (X509_V_ERR_...)
_VERIFY = {
    9: ("has a certificate that is not valid yet", "Compare the clocks of both machines"),
    10: ("has a certificate that ran out", "Compare the clocks of both machines; restart that node to renew it"),
    11: ("has a list of revoked nodes that is not valid yet", "Compare the clocks of both machines"),
    12: ("has a list of revoked nodes that ran out", "Compare the clocks of both machines"),
    18: ("has a certificate of its own making", "It is not a node of this mesh"),
    19: _UNKNOWN,
    20: _UNKNOWN,
    23: ("was revoked", "It can join again with a new token"),
    62: ("is another node than the one expected there", "Check the address"),
}
# What the other side found wrong with ours, as alerts in the text of the error.
_ALERTS = {
    "CERTIFICATE_EXPIRED": ("says that our certificate ran out", "Compare the clocks of both machines"),
    "CERTIFICATE_REVOKED": ("says that this node was revoked", "Join again with a new token, and so a new key"),
    "UNKNOWN_CA": ("belongs to another mesh", "Check the address, or join its mesh with a token"),
    "CERTIFICATE_REQUIRED": ("asks for a certificate", "Join its mesh with a token: mesh-worker join"),
    "BAD_CERTIFICATE": ("does not accept our certificate", "Join its mesh with a token: mesh-worker join"),
    "WRONG_VERSION_NUMBER": ("does not speak TLS there", "Check the address"),
    "RECORD_LAYER_FAILURE": ("does not speak TLS there", "Check the address"),  # newer OpenSSL
}


def is_tls_error(error: object) -> bool:
    """Whether TLS failed, and not the network under it."""
    return isinstance(error, ssl.SSLError)


def explain(error: OSError | EOFError, where: str) -> MeshError:
    """What a handshake's failure with the node at `where` means.

    A TLS 1.3 client whose certificate is refused sees a handshake that succeeded and then the end of the connection:
    pass an EOFError for an end before the first byte.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        meaning, then = _VERIFY.get(error.verify_code, ("has a certificate that cannot be trusted", ""))
        return NotTrusted(f"{where} {meaning}", cause=error.verify_message, next_step=then)
    if isinstance(error, ssl.SSLError):
        for alert, (meaning, then) in _ALERTS.items():
            if alert in str(error).upper().replace(" ", "_"):
                return NotTrusted(f"{where} {meaning}", next_step=then)
        return ConnectFailed(f"{where} broke off the TLS handshake", cause=str(error))
    if isinstance(error, EOFError):
        return NotTrusted(
            f"{where} closed the connection: it did not accept our certificate",
            next_step="This node may have been revoked, belong to another mesh, or have a clock that is wrong",
        )
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return ConnectFailed(
            f"{where} broke off the connection",
            cause=error.strerror or str(error),
            next_step="It may not accept this node's certificate, or have too many callers; look at its log",
        )
    return ConnectFailed(f"nobody answers at {where}", cause=error.strerror or str(error))


# What it means that a caller's handshake came to nothing, by a word of OpenSSL's.
_CALLERS = {
    "UNKNOWN_CA": "a caller gave up the handshake: it expects another mesh",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "a caller has no certificate: it joined no mesh",
}


def gave_up(error: OSError) -> bool:
    """Whether a caller broke off the handshake; asyncio hangs up on whom it does not trust and does not say so."""
    return isinstance(error, ConnectionError) and "taking longer" not in str(error)


def explain_caller(error: OSError, handshake_s: float) -> str:
    """What a handshake's failure with a caller means, for the log; it had `handshake_s`."""
    if gave_up(error):
        return "a caller gave up the handshake: it may expect another mesh"
    if isinstance(error, ConnectionError):
        return f"a caller did not finish the handshake within {handshake_s:g} s"
    code = str(error).upper().replace(" ", "_")
    if not isinstance(error, ssl.SSLCertVerificationError):  # then it is we who do not know the caller
        for word, text in _CALLERS.items():
            if word in code:
                return text
    return explain(error, "a caller").message


# -- helpers -----------------------------------------------------------------------------------------------


def _context(protocol: Any) -> TLSContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a resumed session would pass by the revocation list
    return context


def _checking_revocations(context: TLSContext, files: TLSFiles) -> TLSContext:
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    reload(context, files)
    return context
