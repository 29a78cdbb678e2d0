// Measured rows and the constants that are fitted to them.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/base/error.hpp"
#include "lessons/17_choose_a_layout/calibration.hpp"
#include "tests/catch.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

const std::string machines = RANKWISE_MACHINES;

Machine a100()
{
  return read_machine(machines + "a100-80gb-sxm.conf");
}

/// Rows of models of one shape on 8 and 64 GPUs, whose times the model itself computes, with other constants.
std::vector<MeasuredRow> rows_of(const Machine& machine)
{
  std::vector<MeasuredRow> rows;
  for (const std::int64_t C : {1024, 2048, 4096})
    for (const std::int64_t tp : {1, 2, 8})
      for (const std::int64_t dp : {1, 8})
        for (const std::int64_t b : {1, 4}) {
          MeasuredRow row;
          row.job = {.model = {"row", 16, 16, C, 1024, 51200}, .global_batch = 64, .system = System::megatron};
          row.layout = {.dp = dp, .tp = tp, .micro_batch = b};
          row.seconds = predicted(row, machine);
          row.text = std::to_string(rows.size());
          rows.push_back(row);
        }
  return rows;
}

/// The message with which a file is refused.
std::string refusal(const std::string& text)
{
  const ScratchFolder folder;
  const std::string path = folder / "rows.csv";
  std::ofstream(path) << text;
  try {
    read_rows(path, {.only = "", .skip = "", .peak = 312e12});
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string names = "gpus,global batch,micro batch,hidden,heads,layers,seq,tp,dp,pp,iteration time (ms)\n";

}  // namespace

TEST_CASE("fitted: finds the constants with which rows were made, from ten of them")
{
  const Machine before = a100();
  Machine truth = before;
  truth.constants.product_share.value = 0.74;
  truth.constants.meeting.value = 200e-6;
  truth.constants.host.value = 0.6e-3;
  const std::vector<MeasuredRow> rows = rows_of(truth);
  Machine found = before;
  found.constants = fitted(before, chosen_rows(rows, 10));
  CHECK(errors_of(rows, before).mean > 0.07);
  CHECK(errors_of(rows, found).mean < 0.02);
  CHECK(found.constants.host == Approx(0.6e-3).epsilon(0.15));
  CHECK(found.constants.meeting == Approx(200e-6).epsilon(0.25));
}

TEST_CASE("fitted: one row measured on a bad day does not decide, and constants stay within their bounds")
{
  const Machine machine = a100();
  std::vector<MeasuredRow> rows = rows_of(machine);
  rows.resize(10);
  rows[3].seconds *= 3;
  Machine found = machine;
  found.constants = fitted(machine, rows);
  rows.erase(rows.begin() + 3);
  CHECK(errors_of(rows, found).mean < 0.02);
  for (MeasuredRow& row : rows) row.seconds *= 100;
  found.constants = fitted(machine, rows);
  for (const ConstantKind& kind : constant_kinds()) {
    INFO(kind.name);
    CHECK(found.constants.*kind.constant >= kind.least * (1 - 1e-9));
    CHECK(found.constants.*kind.constant <= kind.most * (1 + 1e-9));
  }
}

TEST_CASE("chosen_rows: those with the least SHA-256, others with another salt, and never more than there are")
{
  const std::vector<MeasuredRow> rows = rows_of(a100());
  const auto texts = [&](std::int64_t count, const std::string& salt) {
    std::vector<std::string> all;
    for (const MeasuredRow& row : chosen_rows(rows, count, salt)) all.push_back(row.text);
    return all;
  };
  // for i in $(seq 0 35); do echo "$(printf $i | sha256sum) $i"; done | sort | head -3
  CHECK(texts(3, "") == std::vector<std::string>{"9", "8", "29"});
  CHECK(texts(10, "") != texts(10, "1"));
  CHECK(texts(100, "").size() == rows.size());
}

TEST_CASE("read_rows: refuses what cannot be, with the line")
{
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,100\n") == "accepted");
  CHECK(refusal("\xEF\xBB\xBF" + names + "8,8,1,1024,16,4,512,2,2,1,100\r\n").find("are not its 8 GPUs") !=
        std::string::npos);
  CHECK(refusal(std::string("g\0p\0u\0", 6)).find("looks like UTF-16") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,100\n8,8,1,1024,16,4,512,2,2,1,100\n")
            .find("line 3 cannot be used: tp=2 x pp=1 x dp=2 are not its 8 GPUs") != std::string::npos);
  CHECK(refusal(names + "8,8,3,1024,16,4,512,2,4,1,100\n").find("do not divide the global batch") !=
        std::string::npos);
  CHECK(refusal(names + "8,8,1,-5,16,4,512,2,4,1,100\n").find("not a number, 0 or more") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,soon\n").find("not a number, 0 or more") != std::string::npos);
  CHECK(refusal(names + "8,8,1.5,1024,16,4,512,2,4,1,100\n").find("not a whole number") != std::string::npos);
  CHECK(refusal(names + "8,8,1e19,1024,16,4,512,2,4,1,100\n").find("not a whole number up to") !=
        std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1\n").find("it has 10 cells") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,\n").find("it has no time") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,100\n8,8,1,1024,16,4,512,2,4,1,100\n")
            .find("line 3 cannot be used: it is "
                  "there twice") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,7,4,512,2,4,1,100\n").find("does not divide the 7 heads") != std::string::npos);
  CHECK(refusal(names + "8,8,1,1024,16,4,512,2,4,1,0.1\n").find("TFLOP/s a GPU, which has 312") !=
        std::string::npos);
  CHECK(refusal(names).find("has no row to use") != std::string::npos);
}

TEST_CASE("read_machine: every machine file, and what is missing or has no unit")
{
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(machines)) {
    INFO(file.path());
    CHECK(read_machine(file.path().string()).memory > 1e9);
    ++files;
  }
  CHECK(files >= 7);

  std::ifstream whole(machines + "a100-80gb-sxm.conf");
  const std::string text{std::istreambuf_iterator<char>(whole), {}};
  const ScratchFolder folder;
  const auto says = [&](const std::string& from, const std::string& to) -> std::string {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    const std::string path = folder / "machine.conf";
    std::ofstream(path) << changed;
    try {
      read_machine(path);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(says("host = ", "host = ") == "accepted");
  CHECK(says("memory = 80 GB", "memory = 80").find("line 6 is not a number with its unit") != std::string::npos);
  CHECK(says("network = 200 GB/s\n", "").find("does not say network") != std::string::npos);
  CHECK(says("network = 200 GB/s", "network = 0 GB/s").find("line 10, is not more than 0") != std::string::npos);
  CHECK(says("product-share = 0.8", "product-share = 1.8").find("line 19, is not from 0.2 to 0.95") !=
        std::string::npos);
}
