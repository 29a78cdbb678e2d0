#include "gpt2/smaller_run.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Options of a run, and what it needs with them.
struct Wishes {
  bool recompute = false;
  int micro_batch = 4;

  std::int64_t bytes() const { return (recompute ? 1000 : 2000) * micro_batch; }
};

}  // namespace

TEST_CASE("SmallerRun: one option after the other is changed until the run fits")
{
  Wishes wishes;
  SmallerRun run([&] { return wishes.bytes(); }, 2000);
  CHECK(!run.fits_with("--recompute=block", wishes.recompute, true));
  CHECK(wishes.bytes() == 4000);
  CHECK(run.fits_with("--micro-batch=2", wishes.micro_batch, 2));
  CHECK(run.enough() == "2,000 bytes are enough with --recompute=block --micro-batch=2.");
}

TEST_CASE("SmallerRun: an option that has the value already is not named")
{
  Wishes wishes{.recompute = true};
  SmallerRun run([&] { return wishes.bytes(); }, 1000);
  CHECK(!run.fits_with("--recompute=block", wishes.recompute, true));
  CHECK(run.fits_with("--micro-batch=1", wishes.micro_batch, 1));
  CHECK(run.enough() == "1,000 bytes are enough with --micro-batch=1.");
}

TEST_CASE("SmallerRun: reports the smallest possible run if none fits")
{
  Wishes wishes;
  SmallerRun run([&] { return wishes.bytes(); }, 999);
  CHECK(run.least("", "Use a smaller model.") == "The least that works is 8,000 bytes. Use a smaller model.");
  CHECK(!run.fits_with("--recompute=block", wishes.recompute, true));
  CHECK(!run.fits_with("--micro-batch=1", wishes.micro_batch, 1));
  CHECK(run.least("on this mesh", "Start more ranks.") ==
        "The least that works on this mesh is 1,000 bytes, with --recompute=block --micro-batch=1. Start more "
        "ranks.");
}
