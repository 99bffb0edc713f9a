// The most multiply-adds this build gets out of the machine: nothing but registers, no memory.
#pragma once
#include <chrono>
#include <thread>
#include <vector>

#include "simd.hpp"

namespace feddag {

constexpr int kPeakSums = 2 * kTileRows;  // independent sums hide the latency of each other

inline float multiply_adds(long rounds) {
    Vec<float> sums[kPeakSums];
    const Vec<float> a = splat(0.999f), b = splat(0.001f);
    FEDDAG_UNROLL
    for (int i = 0; i < kPeakSums; i++) sums[i] = splat(float(i));
    for (long round = 0; round < rounds; round++) {
        FEDDAG_UNROLL
        for (int i = 0; i < kPeakSums; i++) sums[i] = sums[i] * a + b;
    }
    float total = 0;
    for (int i = 0; i < kPeakSums; i++) total += sums[i][0];
    return total;
}

// GFLOP/s of all threads together.
inline double fma_peak(int threads, long rounds) {
    std::vector<float> totals(threads);  // told apart from work that could be left out
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> helpers;
    for (int t = 0; t < threads; t++) helpers.emplace_back([&totals, t, rounds] { totals[t] = multiply_adds(rounds); });
    for (auto& helper : helpers) helper.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const volatile float used = totals[0];
    (void)used;
    return 2.0 * kLanes<float> * kPeakSums * double(rounds) * threads / seconds / 1e9;
}

}  // namespace feddag
