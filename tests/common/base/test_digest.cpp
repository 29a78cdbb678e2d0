#include <cstddef>
#include <string>
#include <vector>

#include "common/base/digest.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

std::span<const std::byte> bytes_of(const std::string& text)
{
  return std::as_bytes(std::span(text));
}

std::string sha256_of(const std::string& text)
{
  Sha256 digest;
  digest.update(bytes_of(text));
  return digest.hex();
}

}  // namespace

TEST_CASE("Sha256: the published vectors")
{
  // NIST, "SHA-256 examples", and the digest of nothing.
  CHECK(Sha256().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("Sha256: the digest depends on the order of the bytes, not on the sizes of the pieces")
{
  const std::string text = "the order of these bytes matters";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 digest;
    digest.update(bytes_of(text).first(cut));
    const std::string so_far = digest.hex();  // looking does not change it
    digest.update(bytes_of(text).subspan(cut));
    CHECK(so_far == sha256_of(text.substr(0, cut)));
    CHECK(digest.hex() == sha256_of(text));
  }
  CHECK(sha256_of("ab") != sha256_of("ba"));
}

TEST_CASE("placed_digest: the sum over pieces is that of the whole; place, value and number of times count")
{
  const std::vector<float> values{1, -2, 0, 4, 0, 0, 7.5F};
  const std::span<const float> all(values);
  const std::uint64_t whole = placed_digest(0, all);
  CHECK(placed_digest(3, all.subspan(3)) + placed_digest(0, all.first(3)) == whole);
  CHECK(placed_digest(0, all.first(6)) != whole);               // one is missing
  CHECK(whole + placed_digest(2, all.subspan(2, 1)) != whole);  // a zero, twice
  CHECK(placed_digest(1, all) != whole);                        // all at another place
  CHECK(placed_digest<float>(0, std::vector<float>{1, -2, -0.0F, 4, 0, 0, 7.5F}) != whole);
  CHECK(placed_digest<float>(0, std::vector<float>{-2, 1, 0, 4, 0, 0, 7.5F}) != whole);
}
