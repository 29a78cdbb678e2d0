// common/files/plain_text.hpp: a text comes whole, also from a pipe; a pipe without a writer is refused.

#include <chrono>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include "common/base/error.hpp"
#include "common/files/descriptor.hpp"
#include "common/files/plain_text.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

std::string text_of(const std::string& path)
{
  return whole_text(path, {.asked = "--config=" + path, .remedy = "Name a text."}, 1'000'000);
}

void write_text(const Descriptor& file, const std::string& text)
{
  REQUIRE(write_all(file, std::as_bytes(std::span(text))));
}

}  // namespace

TEST_CASE("read_text: a pipe without a writer is refused, and does not wait for ever")
{
  const ScratchFolder folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(text_of(folder / "pipe"),
                    Contains("/pipe is a pipe, and no program has written to it") && Contains("Name a text."));
}

TEST_CASE("read_text: all of a pipe, however late and slow its writer is")
{
  const ScratchFolder folder;
  const std::string path = folder / "pipe", mark = "\xEF\xBB\xBF";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  for (const int nap_ms : {0, 30, 250}) {
    std::thread writer([&] {
      const auto nap = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(nap_ms)); };
      nap();
      const Descriptor file(path, O_WRONLY);
      for (const std::string& part : {mark, std::string("one "), std::string("text")}) {
        nap();
        write_text(file, part);
      }
    });
    const std::string text = text_of(path);
    writer.join();
    CHECK(text == "one text");
  }
}

TEST_CASE("read_text: a pipe that was open already, as that of a shell's <(...), also when its writer has ended")
{
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const Descriptor out(ends[0]);
  {
    const Descriptor in(ends[1]);
    write_text(in, "a text");
  }
  CHECK(text_of(fmt::format("/dev/fd/{}", out.id())) == "a text");
}
