#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/messages/layers/link_options.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("parse_link: latencies and bandwidths with their units")
{
  const LinkOptions one = parse_link("5us,10GB/s");
  REQUIRE(one.ranks_per_node == 0);
  REQUIRE(one.inside.latency == 5'000'000);
  REQUIRE(one.inside.bandwidth_Bps == 10e9);
  REQUIRE(&one.of(0, 1000) == &one.inside);

  const auto latency = [](const std::string& text) {
    return parse_link(fmt::format("{},1GB/s", text)).inside.latency;
  };
  REQUIRE(latency("2s") == 2'000'000'000'000);
  REQUIRE(latency("1.5ms") == 1'500'000'000);
  REQUIRE(latency("0.25us") == 250'000);
  REQUIRE(latency("7ns") == 7'000);
  REQUIRE(latency("0s") == 0);
  REQUIRE(latency("1e3 us") == 1'000'000'000);
  const auto bandwidth = [](const std::string& text) {
    return parse_link(fmt::format("0s,{}", text)).inside.bandwidth_Bps;
  };
  REQUIRE(bandwidth("1000B/s") == 1000);
  REQUIRE(bandwidth("2kB/s") == 2e3);
  REQUIRE(bandwidth("100Mb/s") == 12.5e6);
  REQUIRE(bandwidth("100Gb/s") == 12.5e9);
  REQUIRE(bandwidth("1.5GiB/s") == 1.5 * 1073741824);
  REQUIRE(bandwidth("1Tb/s") == 125e9);
  REQUIRE(bandwidth("8Mib/s") == 1048576);
}

TEST_CASE("parse_link: two kinds of links, by the node of each rank")
{
  const LinkOptions two = parse_link("1us,100GB/s,5us,10GB/s,4");
  REQUIRE(two.of(0, 3).latency == 1'000'000);
  REQUIRE(two.of(3, 4).latency == 5'000'000);
  REQUIRE(two.of(4, 3).bandwidth_Bps == 10e9);
  REQUIRE(two.of(4, 7).bandwidth_Bps == 100e9);
}

TEST_CASE("parse_link: anything else is refused, and the part is named")
{
  const auto refuses = [](const std::string& text, const std::string& what) {
    INFO(text);
    REQUIRE_THROWS_AS(parse_link(text), UserError);
    REQUIRE_THROWS_WITH(parse_link(text), Contains(fmt::format("--link={}", text)) && Contains(what) &&
                                              Contains("--link=5us,10GB/s"));
  };
  refuses("", "1 parts");
  refuses("5us", "1 parts");
  refuses("5us,10GB/s,5us", "3 parts");
  refuses("5,10GB/s", "\"5\" is not a latency");
  for (const char* latency : {"us", "-1us", "infs", "nans", "5ks", "5US", "2000s", "0x5us", "", "5µs"})
    refuses(fmt::format("{},10GB/s", latency), "is not a latency");
  for (const char* bandwidth :
       {"10", "10GB", "0GB/s", "-1GB/s", "10gb/s", "10Gbps", "1B/s", "9999999TB/s", "10GB/sec"})
    refuses(fmt::format("5us,{}", bandwidth), fmt::format("\"{}\" is not a bandwidth", bandwidth));
  refuses("1us,1GB/s,5,1GB/s,4", "\"5\" is not a latency");
  for (const char* ranks : {"0", "-1", "two", "", "1.5"})
    refuses(fmt::format("1us,1GB/s,5us,1GB/s,{}", ranks), "is not a number of ranks per node");
}

TEST_CASE("parse_flops: a rate with its unit, and nothing else")
{
  REQUIRE(parse_flops("100GFLOP/s") == 100e9);
  REQUIRE(parse_flops("1TFLOP/s") == 1e12);
  REQUIRE(parse_flops("2.5PFLOP/s") == 2.5e15);
  REQUIRE(parse_flops("5000FLOP/s") == 5000);
  for (const char* text : {"", "100", "100GFLOPS", "0GFLOP/s", "-1GFLOP/s", "infFLOP/s", "1FLOP/s"}) {
    INFO(text);
    REQUIRE_THROWS_WITH(parse_flops(text),
                        Contains(fmt::format("--flops={} is not", text)) && Contains("100GFLOP/s"));
  }
}

TEST_CASE("check_virtual_clock: collectives that send nothing themselves are refused")
{
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree, Algorithm::halving, Algorithm::hierarchical})
    REQUIRE_NOTHROW(check_virtual_clock(algorithm));
  for (const Algorithm algorithm : {Algorithm::shared, Algorithm::library, Algorithm::automatic})
    REQUIRE_THROWS_WITH(check_virtual_clock(algorithm),
                        Contains(fmt::format("--collectives={}", name_of(algorithm))) && Contains("ring"));
}

TEST_CASE("Link: how long a message occupies it, to the picosecond")
{
  REQUIRE(Link{0, 10e9}.occupied(1'000'000) == 100'000'000);
  REQUIRE(Link{0, 3e12}.occupied(1) == 0);
  REQUIRE(Link{0, 3e12}.occupied(2) == 1);
  REQUIRE(Link{0, 3e9}.occupied(1) == 333);
  REQUIRE(Link{0, 1e3}.occupied(std::int64_t{1} << 30) == 1'073'741'824'000'000'000);
  for (const double bandwidth : {1e3, 1e-300})
    REQUIRE_THROWS_WITH((Link{0, bandwidth}.occupied(std::int64_t{1} << 62)), Contains("eight million seconds"));
  REQUIRE(later(longest_virtual_time - 1, 1) == longest_virtual_time);
  REQUIRE_THROWS_AS(later(longest_virtual_time, 1), UserError);
}
