// Layers in sequence, built from their specifications: an encoder or a head. Building checks every size and fuses a
// convolution, its pool and its ReLU into one layer; running hands each layer its neighbours' buffers.
#pragma once
#include <memory>
#include <stdexcept>

#include "conv.hpp"
#include "linear.hpp"
#include "rows.hpp"
#include "simple.hpp"

namespace feddag {

// One layer as the caller describes it; `kind` is the name of its class on the Python side.
struct LayerSpec {
    std::string kind, name;
    int in = 0, out = 0, kernel = 0, stride = 0, padding = 0, groups = 0;
    bool bias = true, series = false;
    double p = 0, eps = 0;
};

template <class T> class Sequential {
public:
    bool trainable = false;

    // `input` is one sample as the caller stores it; `dropouts` counts dropout layers over all parts of a network.
    Sequential(const std::string& name, const std::vector<LayerSpec>& layers, Layout input, int batch, int& dropouts)
        : name_(name), batch_(batch) {
        const bool over_time = !layers.empty() && layers[0].kind == "TimeLast";
        const bool is_series = input.series && !input.flat;
        if (over_time && !is_series) refuse(layers[0], "needs a series but its input is " + text(input));
        if (is_series && !over_time) input = Layout{1, 1, input.elements(), input.elements(), 0, true};
        input.pad = padding_of(layers, 0);
        Layout now = input_ = checked({"Input", {}}, input);
        for (std::size_t i = 0; i < layers.size();) i += add(layers, i, now, batch, dropouts);
        output_ = now;
        values_.emplace_back(batch * input_.size());
        grads_.emplace_back(batch * input_.size());
        for (const auto& layer : layers_) {
            values_.emplace_back(batch * layer->out.size());
            grads_.emplace_back(batch * layer->out.size());
        }
        first_learning_ = layers_.size();
        for (std::size_t i = layers_.size(); i-- > 0;)
            if (!layers_[i]->params.empty()) first_learning_ = i;
    }

    const Layout& input_layout() const { return input_; }
    const Layout& output_layout() const { return output_; }
    T* input() { return values_.front().data(); }
    T* output() { return values_.back().data(); }
    T* output_grad() { return grads_.back().data(); }
    T* input_grad() { return grads_.front().data(); }

    void refresh() {
        for (auto& layer : layers_) layer->refresh();
    }
    // Puts other weights in the place of the part's own, which are then where the others were.
    void exchange(std::vector<Buffer<T>>& values) {
        std::size_t i = 0;
        for_each_param([&](Param<T>& p) { std::swap(p.value, values[i++]); });
        refresh();
    }
    void forward(Pass pass) {
        pass.training = pass.training && trainable;  // a frozen part drops nothing
        for (std::size_t i = 0; i < layers_.size(); i++)
            layers_[i]->forward(values_[i].data(), values_[i + 1].data(), pass);
    }
    void backward(Pass pass, const Optimizer& sgd, bool input_grad_needed) {
        pass.training = pass.training && trainable;
        pass.sgd = trainable ? &sgd : nullptr;
        const std::size_t last = input_grad_needed ? 0 : trainable ? first_learning_ : layers_.size();
        for (std::size_t i = layers_.size(); i-- > last;) {
            T* gx = i > last || input_grad_needed ? grads_[i].data() : nullptr;
            layers_[i]->backward(values_[i].data(), values_[i + 1].data(), grads_[i + 1].data(), gx, pass);
        }
    }
    std::vector<std::string> ways() const {
        std::vector<std::string> all;
        for (const auto& layer : layers_) all.push_back(layer->way());
        return all;
    }
    template <class Work> void for_each_param(Work work) {
        for (auto& layer : layers_)
            for (auto& param : layer->params) work(param);
    }

private:
    static int padding_of(const std::vector<LayerSpec>& layers, std::size_t next) {
        while (next < layers.size() && (layers[next].kind == "Flatten" || layers[next].kind == "TimeLast")) next++;
        return next < layers.size() && layers[next].kind == "Conv" ? layers[next].padding : 0;
    }
    [[noreturn]] void refuse(const LayerSpec& layer, const std::string& why) const {
        throw std::invalid_argument(name_ + ": layer " + layer.kind +
                                    (layer.name.empty() ? "" : " '" + layer.name + "'") + " " + why + ".");
    }
    static std::string text(const Layout& m) {
        if (m.flat) return std::to_string(m.elements()) + " values";
        const std::string columns = std::to_string(m.w), channels = std::to_string(m.c) + " channels of ";
        return channels + (m.series ? columns + " steps" : std::to_string(m.h) + " x " + columns);
    }
    int windows(const LayerSpec& layer, int size, int kernel, int stride, const Layout& now) const {
        if (kernel > size)
            refuse(layer, "has a window of " + std::to_string(kernel) + " but its input is " + text(now));
        return (size - kernel) / stride + 1;
    }
    // Counts and offsets of a whole batch stay within 32 bits.
    Layout checked(const LayerSpec& layer, Layout m) const {
        if (double(m.h + 2 * m.pad_rows()) * m.width() * (m.stored + 16) * batch_ >= 2147483648.0)
            refuse(layer, "makes 2^31 values or more of a batch of " + std::to_string(batch_) + " samples");
        return m;
    }

    // Adds the layer at i, fused with what follows where possible; returns how many descriptions it used.
    std::size_t add(const std::vector<LayerSpec>& layers, std::size_t i, Layout& now, int batch, int& dropouts) {
        const LayerSpec& d = layers[i];
        constexpr int L = kLanes<T>;
        if (d.kind == "Flatten") {
            now.flat = true;
            return 1;
        }
        if (d.kind == "TimeLast") {  // the samples lie so already
            if (i > 0) refuse(d, "is not the first of its part");
            return 1;
        }
        if ((d.kind == "Conv" || d.kind == "MaxPool" || d.kind == "AvgPool") && !now.flat && d.series != now.series)
            refuse(d, std::string("is for ") + (d.series ? "series" : "images") + " but its input is " + text(now));
        if (d.kind == "Conv") return add_conv(layers, i, now, batch);
        if (d.kind == "Linear") {
            if (!now.flat || d.in != now.elements())
                refuse(d, "takes " + std::to_string(d.in) + " values but its input is " + text(now));
            if (double(d.in) * (d.out + 2 * L) > 1 << 27) refuse(d, "has more than 2^27 weights");
            LinearShape shape{d.name, d.in, d.out, d.bias};
            shape.relu = i + 1 < layers.size() && layers[i + 1].kind == "ReLU";
            const Layout out = checked(d, Layout{1, 1, d.out, round_up(d.out, L), 0, true});
            layers_.push_back(std::make_unique<Linear<T>>(shape, now, out, batch));
            now = out;
            return shape.relu ? 2 : 1;
        }
        Layout out = now;
        out.pad = padding_of(layers, i + 1);
        if (d.kind == "MaxPool" || d.kind == "AvgPool") {
            if (now.flat) refuse(d, "needs an image but its input is " + text(now));
            out.h = windows(d, now.h, now.rows(d.kernel), d.stride, now);
            out.w = windows(d, now.w, d.kernel, d.stride, now);
        }
        checked(d, out);
        if (d.kind == "ReLU")
            layers_.push_back(std::make_unique<ReLU<T>>(now, out));
        else if (d.kind == "Dropout")
            layers_.push_back(std::make_unique<Dropout<T>>(d.p, dropouts++, now, out, batch));
        else if (d.kind == "MaxPool")
            layers_.push_back(std::make_unique<MaxPool<T>>(d.kernel, d.stride, now, out, batch));
        else if (d.kind == "AvgPool")
            layers_.push_back(std::make_unique<AvgPool<T>>(d.kernel, d.stride, now, out));
        else if (d.kind == "GroupNorm") {
            if (d.in != now.c || now.flat)
                refuse(d, "takes " + std::to_string(d.in) + " channels but its input is " + text(now));
            if (d.in % d.groups)
                refuse(d, "cannot divide " + std::to_string(d.in) + " channels into " + std::to_string(d.groups) +
                              " groups");
            layers_.push_back(std::make_unique<GroupNorm<T>>(d.name, d.groups, d.eps, now, out, batch));
        } else
            refuse(d, "is not one of Conv, ReLU, MaxPool, AvgPool, GroupNorm, Dropout, Flatten, Linear, TimeLast");
        now = out;
        return 1;
    }

    // Whole vectors, but no surplus where that would be half a one or more: the next convolution reads it all.
    static int stored_channels(int channels) {
        constexpr int L = kLanes<T>;
        return channels <= L / 2 ? channels : round_up(channels, L);
    }

    // Conv with its MaxPool and ReLU in either order: a maximum is the same before and after a monotone function.
    std::size_t add_conv(const std::vector<LayerSpec>& layers, std::size_t i, Layout& now, int batch) {
        const LayerSpec& d = layers[i];
        if (now.flat || d.in != now.c)
            refuse(d, "takes " + std::to_string(d.in) + " channels but its input is " + text(now));
        Layout out{windows(d, now.h + 2 * (now.series ? 0 : d.padding), now.rows(d.kernel), d.stride, now),
                windows(d, now.w + 2 * d.padding, d.kernel, d.stride, now),
                d.out,
                stored_channels(d.out),
                0,
                false,
                now.series};
        if (double(round_up(now.stored * d.kernel, kLanes<T>)) * now.rows(d.kernel) * out.stored > 1 << 27)
            refuse(d, "has more than 2^27 weights");
        ConvShape shape{d.name, d.in, d.out, d.kernel, d.stride, d.bias};
        std::size_t next = i + 1;
        bool pooled = false;
        for (; next < layers.size(); next++) {
            const LayerSpec& after = layers[next];
            if (after.kind == "ReLU" && !shape.relu)
                shape.relu = true;
            else if (after.kind == "MaxPool" && !pooled && after.series == out.series) {
                out.h = windows(after, out.h, out.rows(after.kernel), after.stride, out);
                out.w = windows(after, out.w, after.kernel, after.stride, out);
                shape.pool = after.kernel;
                shape.pool_stride = after.stride;
                pooled = true;
            } else
                break;
        }
        out.pad = padding_of(layers, next);
        checked(d, out);
        // The first layer of a part that is a convolution is an encoder's, of which nobody asks for an input gradient.
        if (layers_.empty() && RowConv<T>::suits(shape, now, out))
            layers_.push_back(std::make_unique<RowConv<T>>(shape, now, out, batch));
        else
            layers_.push_back(std::make_unique<Conv<T>>(shape, now, out, batch));
        now = out;
        return next - i;
    }

    std::string name_;
    int batch_;
    Layout input_, output_;
    std::vector<std::unique_ptr<Layer<T>>> layers_;
    std::vector<Buffer<T>> values_, grads_;
    std::size_t first_learning_ = 0;
};

}  // namespace feddag
