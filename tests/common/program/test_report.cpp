#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/program/report.hpp"
#include "tests/catch.hpp"
#include "tests/reported.hpp"

using namespace rankwise;
namespace fs = std::filesystem;

namespace {

/// An empty folder for the time of a test.
struct Folder {
  const fs::path path = fs::temp_directory_path() / fmt::format("rankwise_{}_test_report", getpid());
  Folder()
  {
    fs::remove_all(path);
    fs::create_directory(path);
  }
  ~Folder() { fs::remove_all(path); }
};

std::string content(const fs::path& path)
{
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("Report: comments, names, units and rows are aligned in columns")
{
  Page page;
  Report report(true, "", page.file());
  report.comment("lesson 01\nmodel nano");
  report.columns({{"step", "-", "{:.0f}"}, {"loss", "nats", "{:.6f}"}, {"throughput", "tokens/s", "{:.1f}"}});
  report.row({1, 5.545177, 1234.56});
  report.row({200, std::nan(""), 0});
  CHECK(page.text() ==
        "# lesson 01\n"
        "# model nano\n"
        "#    step       loss  throughput\n"
        "#       -       nats    tokens/s\n"
        "        1   5.545177      1234.6\n"
        "      200        nan         0.0\n");
  CHECK_THROWS_AS(report.row({1, 2}), Error);
}

TEST_CASE("Report: the lines of a block are aligned, without blanks at their ends")
{
  Page page;
  Report report(true, "", page.file());
  report.block("memory", {{"parameters", "882,176 bytes", "4 P = 882,176", "as counted"},
                          {"activations", "17 bytes", "", ""},
                          {"all", "1 byte", "1", ""}});
  CHECK(page.text() ==
        "\nmemory\n"
        "  parameters   882,176 bytes  = 4 P = 882,176  as counted\n"
        "  activations       17 bytes\n"
        "  all                 1 byte  = 1\n");
}

TEST_CASE("Report: checks are printed, written and give the status")
{
  const Folder folder;
  const fs::path path = folder.path / "run.json";
  Page page;
  Report report(true, path, page.file());
  report.json()["lesson"] = "01";
  report.check("bytes of parameters", 882176, 882176, true);
  report.check("loss", 5.5, 5.25, false);
  report.check("digest", "abc", "abc", true);
  CHECK(report.finish() == exit_failure);
  CHECK(page.text() ==
        "\nchecks\n"
        "  PASS  bytes of parameters  882,176  expected 882,176\n"
        "  FAIL  loss                    5.25  expected 5.5\n"
        "  PASS  digest                   abc  expected abc\n");

  const nlohmann::json json = nlohmann::json::parse(content(path));
  CHECK(json["lesson"] == "01");
  REQUIRE(json["checks"].size() == 3);
  CHECK(json["checks"][1] ==
        nlohmann::json({{"name", "loss"}, {"expected", 5.5}, {"measured", 5.25}, {"pass", false}}));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("Report: all checks that hold, or none, end with success")
{
  Page page;
  Report report(true, "", page.file());
  CHECK(report.finish() == exit_success);
  CHECK(page.text().empty());
  report.check("one", 1, 1, true);
  CHECK(report.finish() == exit_success);
}

TEST_CASE("Report: a rank that does not print writes nothing, but knows the verdict")
{
  const Folder folder;
  Page page;
  Report report(false, folder.path / "run.json", page.file());
  report.comment("hidden");
  report.columns({{"step", "-", "{}"}});
  report.row({1});
  report.block("loss", {});
  report.check("one", 1, 2, false);
  CHECK(report.finish() == exit_failure);
  CHECK(page.text().empty());
  CHECK(fs::is_empty(folder.path));
}
