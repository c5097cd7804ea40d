//! Ed25519 keys as raw public keys in TLS 1.3 (RFC 7250, RFC 8410).
//!
//! There are no certificates: who a peer is follows from its key alone. A dialler pins the key that
//! it expects; an acceptor takes any Ed25519 key that the peer can prove and leaves it to its owner
//! whether that key is admitted, since keys change at run time. Sessions are never resumed, so that
//! a key that was revoked proves nothing more.

use crate::naming::name_of;
use perdura_protocol::{ClusterId, PublicKey, SecretKey};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// RFC 8410: `SubjectPublicKeyInfo` of an Ed25519 key, up to the key itself.
const PUBLIC_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// RFC 8410: `OneAsymmetricKey` (PKCS#8 version 1) of an Ed25519 key, up to the seed.
const SECRET_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Why a key cannot be used for TLS.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key is of the simulator's keyed hash, or the library does not take it.
    #[error("not an Ed25519 key that TLS can use: {0}")]
    NotEd25519(String),
    /// The library does not take our choice of algorithms.
    #[error("TLS cannot be configured: {0}")]
    Configuration(String),
}

/// An Ed25519 key with what TLS needs of it, for any number of links.
#[derive(Clone)]
pub struct Identity {
    public: PublicKey,
    certified: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
    server: Arc<ServerConfig>,
    /// What is named by who dials with it.
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.public)
    }
}

impl Identity {
    /// The identity of whoever holds `key`.
    ///
    /// # Errors
    /// When the key is not of the Ed25519 scheme.
    pub fn new(key: &SecretKey) -> Result<Identity, IdentityError> {
        Identity::preferring(key, has_aes())
    }

    /// As [`Identity::new`], on a processor that has instructions for AES, or has not.
    pub(crate) fn preferring(key: &SecretKey, aes: bool) -> Result<Identity, IdentityError> {
        let mut der = SECRET_PREFIX.to_vec();
        der.extend_from_slice(key.seed());
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der))
            .map_err(|error| IdentityError::NotEd25519(error.to_string()))?;
        let info = signing
            .public_key()
            .ok_or_else(|| IdentityError::NotEd25519("it has no public key".into()))?;
        if public_key(info.as_ref()) != Some(key.public()) {
            return Err(IdentityError::NotEd25519("its public key is not Ed25519's".into()));
        }
        let certificate = CertificateDer::from(info.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![certificate], signing));
        let provider = Arc::new(provider(aes));
        let server = server_config(&provider, &certified)?;
        let server = Arc::new(server);
        Ok(Identity { public: key.public(), certified, provider, server, name: None })
    }

    /// The same, whose connections name this group before all else: where it is called, several groups are behind one address.
    #[must_use]
    pub fn naming(self, group: ClusterId) -> Identity {
        Identity { name: name_of(group), ..self }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn accept(&self) -> Result<ServerConnection, Error> {
        ServerConnection::new(Arc::clone(&self.server))
    }

    pub(crate) fn dial(&self, expected: PublicKey) -> Result<ClientConnection, Error> {
        let mut config =
            ClientConfig::builder_with_details(Arc::clone(&self.provider), Arc::new(NoTime))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Expect {
                    expected,
                    verify: Verify::new(),
                }))
                .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                    Arc::clone(&self.certified),
                )));
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = self.name.is_some();
        // A name plays no part in who the other end is: the key is the name. The library asks for one nevertheless.
        let nobody = || ServerName::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST).into());
        let name = self.name.clone().unwrap_or_else(nobody);
        ClientConnection::new(Arc::new(config), name)
    }
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    certified: &Arc<CertifiedKey>,
) -> Result<ServerConfig, IdentityError> {
    let mut config = ServerConfig::builder_with_details(Arc::clone(provider), Arc::new(NoTime))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| IdentityError::Configuration(error.to_string()))?
        .with_client_cert_verifier(Arc::new(AnyProven(Verify::new())))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(
            certified,
        ))));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Keys do not expire, so that the time plays no part: a clock may show whatever it likes, also a time before 1970, over which the library
/// would panic.
#[derive(Debug)]
struct NoTime;

impl TimeProvider for NoTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

/// One key exchange, and two ciphers: AES where the dialler's processor has it, ChaCha20 where it has not. The
/// acceptor takes the first.
fn provider(aes: bool) -> CryptoProvider {
    let mut cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    if !aes {
        cipher_suites.reverse();
    }
    CryptoProvider {
        cipher_suites,
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    }
}

/// Whether the processor has instructions for AES and for GCM's hash. Without them AES is slow.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The key in a `SubjectPublicKeyInfo`, if it is exactly that of an Ed25519 key.
pub(crate) fn public_key(info: &[u8]) -> Option<PublicKey> {
    let key = info.strip_prefix(&PUBLIC_PREFIX)?;
    key.try_into().ok().map(PublicKey)
}

/// What both verifiers share: Ed25519 raw public keys, TLS 1.3 and nothing else.
#[derive(Debug)]
struct Verify {
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verify {
    fn new() -> Verify {
        Verify { algorithms: ring::default_provider().signature_verification_algorithms }
    }

    fn key(certificate: &CertificateDer<'_>) -> Result<PublicKey, Error> {
        public_key(certificate.as_ref())
            .ok_or_else(|| Error::General("the peer's key is not an Ed25519 raw public key".into()))
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::key(certificate)?;
        if signature.scheme != SignatureScheme::ED25519 {
            return Err(Error::General("the handshake is not signed with Ed25519".into()));
        }
        let info = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &info,
            signature,
            &self.algorithms,
        )
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }
}

/// The dialler's verifier: this key and no other.
#[derive(Debug)]
struct Expect {
    expected: PublicKey,
    verify: Verify,
}

impl ServerCertVerifier for Expect {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = Verify::key(end_entity)?;
        if found == self.expected {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General(format!(
            "the replica at this address has key {found:?}.., not {:?}.. as configured: it belongs to another cluster, or the replica was \
             replaced, and the cluster.toml here, or what runs there, is older than that",
            self.expected
        )))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verify::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify.signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The acceptor's verifier: any Ed25519 key that the peer proves to hold.
#[derive(Debug)]
struct AnyProven(Verify);

impl ClientCertVerifier for AnyProven {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Verify::key(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verify::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Scheme;

    #[test]
    fn an_ed25519_key_is_taken_and_a_keyed_hash_is_not() {
        let key = SecretKey::from_seed(Scheme::Ed25519, [4; 32]);
        assert_eq!(Identity::new(&key).unwrap().public(), key.public());
        let hash = SecretKey::from_seed(Scheme::KeyedHash, [4; 32]);
        assert!(matches!(Identity::new(&hash), Err(IdentityError::NotEd25519(_))));
    }

    #[test]
    fn only_the_exact_form_of_a_key_is_read() {
        let mut info = PUBLIC_PREFIX.to_vec();
        info.extend_from_slice(&[9; 32]);
        assert_eq!(public_key(&info), Some(PublicKey([9; 32])));
        info.push(0);
        assert_eq!(public_key(&info), None);
        assert_eq!(public_key(&info[..43]), None);
    }
}
