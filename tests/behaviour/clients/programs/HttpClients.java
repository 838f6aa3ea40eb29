// Java's HttpClient, which LangChain4j, Spring and Ktor use: java HttpClients.java URL KEY BODY PAUSE. Each step prints
// a line of JSON. By default it offers HTTP/2 with `Upgrade: h2c` until it has been answered over HTTP/2.
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import java.util.zip.GZIPOutputStream;

public class HttpClients {
    static String url, key;

    static HttpRequest.Builder post(BodyPublisher body) {
        return HttpRequest.newBuilder(URI.create(url + "/embed")).POST(body)
            .header("content-type", "application/json").header("authorization", "Bearer " + key);
    }

    static synchronized void report(String step, HttpResponse<String> response) {
        String body = response.body().replace("\\", "\\\\").replace("\"", "\\\"");
        System.out.printf("{\"step\": \"%s\", \"status\": %d, \"body\": \"%s\"}%n", step, response.statusCode(), body);
    }

    static byte[] gzip(byte[] body) throws Exception {
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (GZIPOutputStream stream = new GZIPOutputStream(packed)) {
            stream.write(body);
        }
        return packed.toByteArray();
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        key = arguments[1];
        byte[] body = arguments[2].getBytes(StandardCharsets.UTF_8);
        BodyPublisher whole = BodyPublishers.ofByteArray(body);
        BodyPublisher stream = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        HttpClient client = HttpClient.newHttpClient();
        HttpClient plain = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

        report("offer", client.send(post(whole).build(), BodyHandlers.ofString()));
        report("offer, chunked", client.send(post(stream).build(), BodyHandlers.ofString()));
        report("plain", plain.send(post(whole).build(), BodyHandlers.ofString()));
        report("chunked", plain.send(post(stream).build(), BodyHandlers.ofString()));
        HttpRequest packed = post(BodyPublishers.ofByteArray(gzip(body))).header("content-encoding", "gzip").build();
        report("offer, gzip", client.send(packed, BodyHandlers.ofString()));
        report("offer, expect", client.send(post(whole).expectContinue(true).build(), BodyHandlers.ofString()));
        report("expect", plain.send(post(whole).expectContinue(true).build(), BodyHandlers.ofString()));
        HttpRequest request = post(whole).build();
        CompletableFuture.allOf(Stream.generate(() -> client.sendAsync(request, BodyHandlers.ofString()))
            .limit(20).map(sent -> sent.thenAccept(response -> report("offers at once", response)))
            .toArray(CompletableFuture[]::new)).join();
        Thread.sleep(1000 * Long.parseLong(arguments[3]));
        report("after a pause", client.send(post(whole).build(), BodyHandlers.ofString()));
    }
}
