#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <sys/stat.h>

#include "common/base/error.hpp"
#include "common/files/hdf5.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

/// Adds a text attribute of variable length, as h5py writes it.
void write_variable_text(const Hdf5Object& object, const char* name, const char* text)
{
  const Hdf5Object type(H5Tcopy(H5T_C_S1), H5Tclose, "make a type");
  check_hdf5(H5Tset_size(type.id(), H5T_VARIABLE), "make it of variable length");
  const Hdf5Object space(H5Screate(H5S_SCALAR), H5Sclose, "make a space");
  const Hdf5Object attribute(H5Acreate2(object.id(), name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose, "make an attribute");
  check_hdf5(H5Awrite(attribute.id(), type.id(), &text), "write it");
}

}  // namespace

TEST_CASE("attributes: what was written is read back, from a file that was closed in between")
{
  const ScratchFolder folder;
  {
    const Hdf5Object file = create_hdf5(folder / "file.h5");
    write_attribute(file, "text",
                    std::string("gr\xC3\xBC\xC3\x9F"
                                "e"));
    write_attribute(file, "empty", std::string());
    write_attribute(file, "large", std::int64_t{1} << 62);
    write_attribute(file, "negative", std::int64_t{-3});
    write_variable_text(file, "variable", "of any length");
  }
  const Hdf5Object file = open_hdf5(folder / "file.h5");
  CHECK(read_text_attribute(file, "text") ==
        "gr\xC3\xBC\xC3\x9F"
        "e");
  CHECK(read_text_attribute(file, "empty").empty());
  CHECK(read_text_attribute(file, "variable") == "of any length");
  CHECK(read_integer_attribute(file, "large") == std::int64_t{1} << 62);
  CHECK(read_integer_attribute(file, "negative") == -3);
  CHECK(has_attribute(file, "text"));
  CHECK(!has_attribute(file, "Text"));
}

TEST_CASE("attributes: a missing one, one of another type and a second of the same name are errors that name it")
{
  const ScratchFolder folder;
  const Hdf5Object file = create_hdf5(folder / "file.h5");
  write_attribute(file, "text", std::string("abc"));
  write_attribute(file, "number", std::int64_t{5});
  CHECK_THROWS_AS(read_text_attribute(file, "missing"), Error);
  CHECK_THROWS_WITH(read_text_attribute(file, "missing"), Contains("attribute missing"));
  CHECK_THROWS_WITH(read_text_attribute(file, "number"), Contains("attribute number: it is not text"));
  CHECK_THROWS_WITH(read_integer_attribute(file, "text"), Contains("attribute text: it is not an integer"));
  CHECK_THROWS_WITH(write_attribute(file, "text", std::int64_t{5}), Contains("write attribute text"));
}

TEST_CASE("open_hdf5: says why it failed, in HDF5's words")
{
  const ScratchFolder folder;
  CHECK_THROWS_AS(open_hdf5(folder / "missing.h5"), Error);
  CHECK_THROWS_WITH(open_hdf5(folder / "missing.h5"), Contains("missing.h5") && Contains("No such file"));
  CHECK_THROWS_AS(create_hdf5(folder / "no/such/folder.h5"), Error);
  make_file(folder / "text.h5", "not at all");
  CHECK_THROWS_WITH(open_hdf5(folder / "text.h5"), Contains("text.h5"));
}

TEST_CASE("open_plain_dataset: one that says that it is larger than its file is refused before memory is taken")
{
  const ScratchFolder folder;
  constexpr std::uint64_t elements = 4321, claimed = std::uint64_t{1} << 40;
  create_u64_dataset(create_hdf5(folder / "file.h5"), "numbers", elements).close("close it");
  std::string bytes = read_file(folder / "file.h5");
  const auto replace = [&](std::uint64_t number, std::uint64_t by) {
    const std::string from(reinterpret_cast<const char*>(&number), sizeof number),
        to(reinterpret_cast<const char*>(&by), sizeof by);
    std::size_t found = 0;
    for (std::size_t at = 0; (at = bytes.find(from, at)) != bytes.npos; at += to.size(), ++found)
      bytes.replace(at, to.size(), to);
    return found;
  };
  REQUIRE(replace(elements, claimed) > 0);                                      // its extent
  REQUIRE(replace(elements * sizeof elements, claimed * sizeof elements) > 0);  // and what is stored of it
  make_file(folder / "file.h5", bytes);
  const Hdf5Object file = open_hdf5(folder / "file.h5");
  CHECK_THROWS_WITH(open_plain_dataset(file, "numbers"), Contains("numbers: its file is shorter than it"));
}

TEST_CASE("open_hdf5: does not wait for the writer of a pipe")
{
  const ScratchFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(open_hdf5(folder / "pipe"), Contains("it is not a file"));
}

TEST_CASE("check_hdf5: a negative status is an error at the caller's line, any other comes back")
{
  CHECK(check_hdf5(7, "count") == 7);
  CHECK(check_hdf5(0, "count") == 0);
  try {
    check_hdf5(-1, "count");
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.where().file_name()).ends_with("test_hdf5.cpp"));
    CHECK(std::string(error.what()).starts_with("cannot count"));
  }
}

TEST_CASE("Hdf5Object: is closed once, by its last owner")
{
  const ScratchFolder folder;
  Hdf5Object first = create_hdf5(folder / "file.h5");
  const hid_t id = first.id();
  Hdf5Object second = std::move(first);
  CHECK(first.id() < 0);  // NOLINT: what is left after a move is specified
  CHECK(H5Iis_valid(id) > 0);
  {
    Hdf5Object third;
    third = std::move(second);
    CHECK(third.id() == id);
  }
  CHECK(H5Iis_valid(id) == 0);
  Hdf5Object last = create_hdf5(folder / "other.h5");
  last.close("close");
  last.close("close");
  CHECK(last.id() < 0);
}
