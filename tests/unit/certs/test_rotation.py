"""The rotation as a function: what a caller trusts always covers what is served."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.process.certs import pairs as certs
from fluxqueue.process.certs.rotation import (
    HeldCertificates,
    Lives,
    plan,
    read_bundle,
    read_held,
    to_data,
)
from fluxqueue.process.settings import Settings
from fluxqueue_webhook.server import ServerConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
LIVES = Lives(serving=90 * DAY, ca=900 * DAY, overlap=HOUR)
NAMES = certs.service_names("hook", "fluxqueue-system")


def _settle(
    held: HeldCertificates,
    callers: tuple[x509.Certificate, ...] = (),
    *,
    now: datetime = NOW,
    names: tuple[str, ...] = NAMES,
) -> HeldCertificates:
    """Repeat as the controller does: store, tell the callers, ask again."""
    for _ in range(6):
        wanted = plan(held, callers, names, now=now, lives=LIVES)
        if wanted is held and wanted.trusted == callers:
            return held
        held, callers = wanted, wanted.trusted
    raise AssertionError("never settles")


def _is_served_rightly(
    held: HeldCertificates, callers: tuple[x509.Certificate, ...], now: datetime
) -> bool:
    assert held.serving is not None
    builder = PolicyBuilder().store(Store(list(callers))).time(now)
    verifier = builder.build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(held.serving.certificate, [])
    except VerificationError:
        return False
    return True


def test_lives_are_those_of_the_documentation() -> None:
    """And of the settings, which give the one and, times ten, the other."""
    assert Lives() == Lives(serving=365 * DAY, ca=3650 * DAY, overlap=HOUR)
    assert Settings().cert_days == 365
    assert ServerConfig(cert_dir=Path()).reload_interval_s == 5


def test_from_nothing_the_ca_is_trusted_before_anything_is_served() -> None:
    first = plan(HeldCertificates(), (), NAMES, now=NOW, lives=LIVES)
    assert first.ca is not None
    assert first.serving is None, "no caller trusts its CA yet"
    second = plan(first, first.trusted, NAMES, now=NOW, lives=LIVES)
    assert _is_served_rightly(second, first.trusted, NOW)
    assert plan(second, second.trusted, NAMES, now=NOW, lives=LIVES) is second


def test_what_is_stored_is_read_back_and_needs_nothing() -> None:
    held = _settle(HeldCertificates())
    again = read_held(to_data(held))
    assert again == held
    assert plan(again, held.trusted, NAMES, now=NOW, lives=LIVES) is again


def test_a_serving_certificate_is_renewed_at_two_thirds_of_its_life_by_the_same_ca() -> None:
    held = _settle(HeldCertificates())
    before, due = NOW + 60 * DAY - HOUR, NOW + 60 * DAY
    assert plan(held, held.trusted, NAMES, now=before, lives=LIVES) is held
    renewed = plan(held, held.trusted, NAMES, now=due, lives=LIVES)
    assert renewed.serving != held.serving
    assert renewed.trusted == held.trusted


def test_other_names_are_a_reason_for_a_new_certificate() -> None:
    held = _settle(HeldCertificates())
    other = certs.service_names("hook", "elsewhere")
    assert plan(held, held.trusted, other, now=NOW, lives=LIVES).serving != held.serving


def test_a_new_ca_signs_only_when_callers_trust_it_and_the_old_one_stays_for_the_overlap() -> None:
    old = _settle(HeldCertificates())
    due = NOW + 600 * DAY
    old = _settle(old, old.trusted, now=due - DAY)
    added = plan(old, old.trusted, NAMES, now=due, lives=LIVES)
    assert added.ca != old.ca
    assert added.serving == old.serving, "callers do not trust the new CA yet"
    assert set(old.trusted) < set(added.trusted)
    changed = plan(added, added.trusted, NAMES, now=due, lives=LIVES)
    assert changed.serving != old.serving
    assert changed.trusted == added.trusted
    early = plan(changed, added.trusted, NAMES, now=due + HOUR / 2, lives=LIVES)
    assert early is changed, "a webhook may still serve what the old CA signed"
    late = plan(changed, added.trusted, NAMES, now=due + HOUR, lives=LIVES)
    assert late.ca is not None
    assert late.trusted == (late.ca.certificate,)
    assert late.serving == changed.serving


def test_a_lost_secret_keeps_the_callers_ca_for_webhooks_that_still_serve_what_it_signed() -> None:
    old = _settle(HeldCertificates())
    first = plan(HeldCertificates(), old.trusted, NAMES, now=NOW + DAY, lives=LIVES)
    assert set(old.trusted) < set(first.trusted)
    assert first.serving is None
    new = _settle(first, first.trusted, now=NOW + DAY)
    assert _is_served_rightly(old, new.trusted, NOW + DAY), "the old one is still good"
    later = _settle(new, new.trusted, now=NOW + DAY + HOUR)
    assert len(later.trusted) == 1


def test_a_stranger_in_the_bundle_is_not_kept() -> None:
    key = certs.make_ca(now=NOW, validity=DAY).key
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(NOW).not_valid_after(NOW + 900 * DAY)
    stranger = builder.sign(key, certs.hashes.SHA256())
    held = _settle(HeldCertificates(), (stranger,))
    assert stranger not in held.trusted


def test_everything_expired_is_made_anew() -> None:
    held = _settle(HeldCertificates())
    late = NOW + 2000 * DAY
    new = _settle(held, held.trusted, now=late)
    assert _is_served_rightly(new, new.trusted, late)
    assert not set(new.trusted) & set(held.trusted)


DAMAGE = st.sampled_from(["ca.crt", "ca.key", "tls.crt", "tls.key"])


@settings(max_examples=40, deadline=None)
@given(damaged=st.sets(DAMAGE, min_size=1), junk=st.binary(max_size=40), is_absent=st.booleans())
def test_whatever_is_damaged_is_repaired(damaged: set[str], junk: bytes, is_absent: bool) -> None:
    held = _settle(HeldCertificates())
    data = to_data(held)
    for key in damaged:
        if is_absent:
            del data[key]
        else:
            data[key] = junk
    repaired = _settle(read_held(data), held.trusted)
    assert _is_served_rightly(repaired, repaired.trusted, NOW)
    assert repaired.ca is not None
    assert repaired.ca.certificate.public_key() == repaired.ca.key.public_key()


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.integers(1, 400), min_size=5, max_size=40))
def test_at_no_step_of_any_history_is_a_caller_refused(steps: list[int]) -> None:
    """Webhooks lag behind the Secret and callers behind the bundle, each by one step."""
    held = _settle(HeldCertificates())
    served, callers, now = held, held.trusted, NOW
    for days in steps:
        # The pause is at most a quarter of the life. An expired certificate cannot be served.
        for _ in range(1 + days // 20):
            now += min(days, 20) * DAY
            for _ in range(6):
                wanted = plan(held, callers, NAMES, now=now, lives=LIVES)
                assert _is_served_rightly(served, callers, now)
                # From here on each further step would be this one again.
                is_settled = wanted is held and wanted.trusted == callers
                held, told = wanted, wanted.trusted
                assert _is_served_rightly(served, told, now)
                if wanted.serving is not None:
                    assert _is_served_rightly(wanted, told, now)
                callers = told
                if is_settled:
                    break
            served = held
    assert read_bundle(held.bundle_pem) == held.trusted
