// Command cosign signs and verifies with the library of cosign, as the commands of cosign do with a key file and
// without a transparency log. The whole cosign takes ten minutes to compile.
//
//	cosign generate-key-pair        writes cosign.key and cosign.pub
//	cosign sign-blob FILE           writes FILE.sig
//	cosign verify-blob FILE         verifies FILE.sig
//	cosign sign LAYOUT SIGNED       copies the image index of an OCI layout to SIGNED, with a signature
//	cosign verify SIGNED
//
// The keys are in the current folder, and their password is empty.
package main

import (
	"bytes"
	"context"
	"crypto"
	"encoding/base64"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci"
	signedlayout "github.com/sigstore/cosign/v2/pkg/oci/layout"
	"github.com/sigstore/cosign/v2/pkg/oci/mutate"
	"github.com/sigstore/cosign/v2/pkg/oci/signed"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

func main() {
	commands := map[string]func([]string) error{
		"generate-key-pair": generateKeyPair, "sign-blob": signBlob, "verify-blob": verifyBlob, "sign": sign, "verify": verify,
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "cosign:", err)
		os.Exit(1)
	}
}

func password(bool) ([]byte, error) { return nil, nil }

func generateKeyPair([]string) error {
	keys, err := cosign.GenerateKeyPair(password)
	if err != nil {
		return err
	}
	if err := os.WriteFile("cosign.key", keys.PrivateBytes, 0o600); err != nil {
		return err
	}
	return os.WriteFile("cosign.pub", keys.PublicBytes, 0o644)
}

// signed64 returns the signature of a message, as cosign writes it into files and images.
func signed64(message []byte) (string, error) {
	key, err := os.ReadFile("cosign.key")
	if err != nil {
		return "", err
	}
	signer, err := cosign.LoadPrivateKey(key, nil, nil)
	if err != nil {
		return "", err
	}
	signed, err := signer.SignMessage(bytes.NewReader(message))
	return base64.StdEncoding.EncodeToString(signed), err
}

// options make cosign verify with the public key and without a network.
func options() (*cosign.CheckOpts, error) {
	pem, err := os.ReadFile("cosign.pub")
	if err != nil {
		return nil, err
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
	if err != nil {
		return nil, err
	}
	verifier, err := signature.LoadVerifier(key, crypto.SHA256)
	return &cosign.CheckOpts{
		SigVerifier: verifier, ClaimVerifier: cosign.SimpleClaimVerifier, IgnoreTlog: true, Offline: true,
	}, err
}

func signBlob(arguments []string) error {
	blob, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	signature, err := signed64(blob)
	if err != nil {
		return err
	}
	return os.WriteFile(arguments[0]+".sig", []byte(signature), 0o644)
}

func verifyBlob(arguments []string) error {
	blob, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	encoded, err := os.ReadFile(arguments[0] + ".sig")
	if err != nil {
		return err
	}
	signature, err := static.NewSignature(blob, string(encoded))
	if err != nil {
		return err
	}
	check, err := options()
	if err != nil {
		return err
	}
	check.ClaimVerifier = nil
	_, err = cosign.VerifyBlobSignature(context.Background(), signature, check)
	return err
}

// image returns the image index that the index of an OCI layout names.
func image(folder string) (oci.SignedImageIndex, error) {
	outer, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, err
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		return nil, err
	}
	inner, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	return signed.ImageIndex(inner), err
}

func sign(arguments []string) error {
	index, err := image(arguments[0])
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	reference, err := name.NewDigest("registry.test/criswitch@" + digest.String())
	if err != nil {
		return err
	}
	claim, err := payload.Cosign{Image: reference}.MarshalJSON()
	if err != nil {
		return err
	}
	encoded, err := signed64(claim)
	if err != nil {
		return err
	}
	signature, err := static.NewSignature(claim, encoded)
	if err != nil {
		return err
	}
	result, err := mutate.AttachSignatureToImageIndex(index, signature)
	if err != nil {
		return err
	}
	return signedlayout.WriteSignedImageIndex(arguments[1], result)
}

func verify(arguments []string) error {
	check, err := options()
	if err != nil {
		return err
	}
	_, _, err = cosign.VerifyLocalImageSignatures(context.Background(), arguments[0], check)
	return err
}
